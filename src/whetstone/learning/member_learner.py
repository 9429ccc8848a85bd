"""Learner of several members: each member is updated on its own trajectories, by its own learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from whetstone.contracts import fulfils
from whetstone.learning.protocol import Closes, Learner
from whetstone.learning.spec import UpdateBatch, UpdateResult
from whetstone.trajectory import Group, Segment


class MemberLearner:
    """A learner of several members; see `protocol.Learner`.

    Weights, state and imitation are those of the first member. The metrics of the others have the prefix
    `members/NAME/`.

    Args:
        learners: Learner of each trained member, by name; the policy's is the first.
    """

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self.learners = dict(learners)
        self.name, self.first = next(iter(self.learners.items()))

    @property
    def token_budget(self) -> int:
        """See `protocol.Learner`."""
        return min(learner.token_budget for learner in self.learners.values())

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """Update each member on the trajectories that it sampled; see `protocol.Learner`."""
        metrics: dict[str, float] = {}
        advantages: dict[str, float] = {}
        for name, learner in self.learners.items():
            is_first = name == self.name
            own = replace(
                batch,
                groups=groups_of(batch.groups, name, is_first=is_first),
                for_critic=groups_of(batch.for_critic, name, is_first=is_first),
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
        """See `protocol.Learner`."""
        return self.first.imitate(segments)

    def end_step(self) -> None:
        """See `protocol.Learner`."""
        for learner in self.learners.values():
            learner.end_step()

    def weights(self) -> Mapping[str, Tensor]:
        """See `protocol.Learner`."""
        return self.first.weights()

    def state_dict(self) -> dict[str, Any]:
        """See `protocol.Learner`."""
        return self.first.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `protocol.Learner`."""
        self.first.load_state_dict(state)

    def close(self) -> None:
        """See `protocol.Closes`."""
        for learner in self.learners.values():
            if fulfils(learner, Closes):
                learner.close()


def groups_of(groups: Sequence[Group], member: str, *, is_first: bool) -> tuple[Group, ...]:
    """Return the groups with the trajectories that a member sampled; groups without any are left out.

    Args:
        is_first: The member is the first one, which is also trained on trajectories that no member sampled.
    """
    names = (member, "") if is_first else (member,)
    own = (
        replace(group, trajectories=tuple(each for each in group.trajectories if each.member in names))
        for group in groups
    )
    return tuple(group for group in own if group.trajectories)
