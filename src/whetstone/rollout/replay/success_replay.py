"""Success replay: a group without a success gets a stored one.

Note:
    Successes of a step are stored after it, so a group never replays its own. Old ones that are now improbable have the
    full advantage if ratios start at 1, so their age is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from statistics import fmean, stdev
from typing import Any, Literal

from whetstone.errors import CreditError
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import StepOutcome
from whetstone.rollout.replay.buffer import Buffer, StoredTrajectory, mark_replayed
from whetstone.rollout.task_keys import on_policy_trajectories
from whetstone.trajectory import Author, Group, OffPolicy


class SuccessReplay:
    """Replaces the first trajectory of a group by a stored success if the group's rewards are low and nearly equal.

    ARPO-GUI's form: a random stored success of the task, if std < 0.05 and mean < 0.2. DART's form: the newest one, if
    the mean is 0 (`below: 0.0001`, `pick: newest`). With `below: 0` nothing is replayed.

    Sources: ARPO for GUI agents 2025, arXiv:2505.16282, and its code (`replay_buffer.py`); DART 2025, arXiv:2509.23866,
    its code (`trainable_filter.py`).

    Args:
        below: Mean reward of a group below which it counts as failed.
        spread: Standard deviation of the group's rewards below which it counts as failed.
        min_reward: Reward above which a trajectory is stored.
        max_per_task: Maximum number of stored trajectories per task.
        capacity: Maximum number of stored trajectories in total.
        max_age_updates: Maximum age of a stored trajectory, in updates; 0: unlimited.
        pick: Selection of a stored trajectory: a random one, or the newest.
        off_policy: Log-probs that its ratios are computed against: `recompute`, `stored` or `truncated`.
    """

    def __init__(
        self,
        *,
        below: float = 0.2,
        spread: float = 0.05,
        min_reward: float = 0.1,
        max_per_task: int = 8,
        capacity: int = 1024,
        max_age_updates: int = 0,
        pick: Literal["uniform", "newest"] = "uniform",
        off_policy: OffPolicy = OffPolicy.RECOMPUTE,
    ) -> None:
        if off_policy not in (OffPolicy.RECOMPUTE, OffPolicy.STORED, OffPolicy.TRUNCATED):
            raise OptionError("off_policy", f"must be recompute, stored or truncated, got {off_policy}")
        if max_per_task < 1 or capacity < max_per_task:
            raise OptionError("capacity", f"must be at least max_per_task ({max_per_task}), got {capacity}")
        self.below, self.spread, self.min_reward, self.pick = below, spread, min_reward, pick
        self.max_age_updates = max_age_updates
        self.off_policy = off_policy
        self.buffer = Buffer(max_per_key=max_per_task, capacity=capacity)
        self.steps = 0

    def __call__(self, group: Group, draw: Random, /) -> Group:
        """Return the group, with a stored success if its rewards are low; see `TrajectoryReplay.__call__`."""
        rewards = group.rewards
        if not rewards or fmean(rewards) >= self.below or (len(rewards) > 1 and stdev(rewards) >= self.spread):
            return group
        stored = self.buffer.get_trajectories(
            group.task.id, since=self.steps - self.max_age_updates if self.max_age_updates else 0
        )
        if not stored:
            return group
        chosen = (draw.choice(stored) if self.pick == "uniform" else stored[-1]).trajectory
        replayed = mark_replayed(chosen, f"group-{group.number}/replayed/", self.off_policy)
        if self.off_policy is not OffPolicy.RECOMPUTE and not _has_logprobs(replayed.turns):
            raise CreditError(
                f"{chosen.id}: has no log-probs from sampling, which off_policy {self.off_policy} needs; "
                "use off_policy: recompute"
            )
        first = next(k for k, t in enumerate(group.trajectories) if t in group.counted)
        return replace(group, trajectories=(*group.trajectories[:first], replayed, *group.trajectories[first + 1 :]))

    def observe(self, outcome: StepOutcome, /) -> None:
        """Store the trajectories of a step whose reward exceeds `min_reward`."""
        self.steps = outcome.step
        for group in outcome.groups:
            for trajectory in on_policy_trajectories(group):
                if trajectory.score is not None and trajectory.score.value > self.min_reward:
                    self.buffer.add(group.task.id, StoredTrajectory(trajectory, outcome.step))

    def state(self) -> dict[str, Any]:
        """Return the stored trajectories for a checkpoint."""
        return {"steps": self.steps, "stored": self.buffer.state()}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the stored trajectories of a checkpoint."""
        self.steps = state["steps"]
        self.buffer.load_state(state["stored"])

    def forget_versions(self) -> None:
        """Mark the stored trajectories as older than every version of this run."""
        self.buffer.forget_versions()

    def metrics(self) -> dict[str, float]:
        """Return the metric `stored`, the number of stored trajectories."""
        return {"stored": float(len(self.buffer))}


def _has_logprobs(turns: Any) -> bool:
    return all(
        logprob == logprob
        for turn in turns
        for author, logprob in zip(turn.action.authors, turn.action.logprobs, strict=True)
        if author is Author.POLICY
    )
