"""Learner of several members: each member is updated on its own trajectories, by its own learner."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from whetstone.capabilities import implements_protocol
from whetstone.inference import MEMBERS, Member, load_member_states, member_states
from whetstone.learning.protocol import Closes, Learner, count_applied_steps
from whetstone.learning.spec import UpdateBatch, UpdateResult
from whetstone.trajectory import Group, Segment


class MemberLearner:
    """Learner of a run with several trained members; see `protocol.Learner`.

    Created if the recipe has `policies`. `weights` and `imitate` are those of the first member. Metrics of the others
    have the prefix `members/NAME/`.

    Args:
        name: Name of the first member.
        first: Learner of the first member.
        members: Other members by name.
    """

    def __init__(self, name: str, first: Learner, members: Mapping[str, Member]) -> None:
        self.name, self.first, self.members = name, first, members
        trained = {name: each.learner for name, each in members.items() if each.is_trained and each.is_sampled}
        self.learners: dict[str, Learner] = {name: first, **trained}

    @property
    def token_budget(self) -> int:
        """Minimum of the members' token budgets; see `Learner.token_budget`."""
        return min(learner.token_budget for learner in self.learners.values())

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """Update each member on the trajectories that it sampled; see `Learner.update`.

        Trajectories without a member, and demonstrations, are those of the first member.
        """
        if len(self.learners) == 1:
            return self.first.update(batch)
        metrics: dict[str, float] = {}
        advantages: dict[str, float] = {}
        for name, learner in self.learners.items():
            is_first = name == self.name
            names = (name, "") if is_first else (name,)  # the first has the trajectories that no member sampled
            own = replace(
                batch,
                groups=filter_member_groups(batch.groups, names),
                for_critic=filter_member_groups(batch.for_critic, names),
                demonstrations=batch.demonstrations if is_first else (),
            )
            if not own.groups and not own.demonstrations:
                continue
            result = learner.update(own)
            prefix = "" if is_first else f"members/{name}/"
            metrics |= {f"{prefix}{key}": value for key, value in result.metrics.items()}
            advantages |= result.advantages
        return UpdateResult(metrics, advantages)

    def imitate(self, segments: Sequence[Segment]) -> UpdateResult:
        """Make one supervised update of the first member; see `Learner.imitate`."""
        return self.first.imitate(segments)

    def end_step(self) -> None:
        """End a training step of every member; see `Learner.end_step`."""
        for learner in self.learners.values():
            learner.end_step()

    @property
    def applied_steps(self) -> int:
        """See `protocol.CountsAppliedSteps`."""
        return sum(map(count_applied_steps, self.learners.values()))

    def weights(self) -> Mapping[str, Tensor]:
        """Return the current weights of the first member."""
        return self.first.weights()

    def state_dict(self) -> dict[str, Any]:
        """Return the learner states of all members, for a checkpoint."""
        state = self.first.state_dict()
        return state | {MEMBERS: {**state.get(MEMBERS, {}), **member_states(self.members)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the learner states of all members from a checkpoint."""
        self.first.load_state_dict(state)
        load_member_states(self.members, state)

    def close(self) -> None:
        """Release the resources of the members' learners, such as processes."""
        for learner in self.learners.values():
            if implements_protocol(learner, Closes):
                learner.close()


def filter_member_groups(groups: Sequence[Group], names: Collection[str]) -> tuple[Group, ...]:
    """Return the groups restricted to the trajectories of some members.

    Groups without such a trajectory are left out.

    Args:
        groups: Groups of a step.
        names: Names of the members; an empty string selects trajectories that no member sampled.
    """
    own = (
        replace(group, trajectories=tuple(each for each in group.trajectories if each.member in names))
        for group in groups
    )
    return tuple(group for group in own if group.trajectories)
