"""A group that failed altogether is given a success from before.

Easy to get wrong: successes of a step are stored after it, so a group never replays itself; and old ones with a now
tiny probability get the full advantage where ratios begin at 1, so their age is bounded.
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
from whetstone.rollout.replay.buffer import Buffer, Stored, as_replayed
from whetstone.rollout.task_keys import own
from whetstone.trajectory import Author, Group, OffPolicy


class SuccessReplay:
    """Where the rewards of a group hardly differ and are low, its first trajectory gives way to a stored success.

    ARPO-GUI's form: any stored success of the task, where std < 0.05 and mean < 0.2. DART's: the newest, where the
    mean is 0 (`below: 0.0001`, `pick: newest`). With `below: 0` nothing is ever replayed.

    Sources: ARPO for GUI agents 2025, arXiv:2505.16282, and its code (`replay_buffer.py`); DART 2025, arXiv:2509.23866,
    its code (`trainable_filter.py`).

    Args:
        below: Mean reward of a group under which it counts as failed.
        spread: Standard deviation of its rewards under which it does.
        min_reward: Reward above which a trajectory is stored.
        max_per_task: Maximum number of stored trajectories per task.
        capacity: Stored trajectories in all.
        max_age_updates: Maximum age of a stored trajectory, in updates; 0: unlimited.
        pick: Which of them.
        off_policy: What its ratios compare with: `recompute`, `stored`, `truncated`.
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
            raise OptionError("off_policy", f"recompute, stored or truncated, got {off_policy}")
        if max_per_task < 1 or capacity < max_per_task:
            raise OptionError("capacity", f"max_per_task ({max_per_task}) or more, got {capacity}")
        self.below, self.spread, self.min_reward, self.pick = below, spread, min_reward, pick
        self.max_age_updates = max_age_updates
        self.off_policy = off_policy
        self.buffer = Buffer(of_each=max_per_task, capacity=capacity)
        self.steps = 0

    def __call__(self, group: Group, draw: Random, /) -> Group:
        """See `Replay`."""
        rewards = group.rewards
        if not rewards or fmean(rewards) >= self.below or (len(rewards) > 1 and stdev(rewards) >= self.spread):
            return group
        stored = self.buffer.of(group.task.id, since=self.steps - self.max_age_updates if self.max_age_updates else 0)
        if not stored:
            return group
        chosen = (draw.choice(stored) if self.pick == "uniform" else stored[-1]).trajectory
        replayed = as_replayed(chosen, f"group-{group.number}/replayed/", self.off_policy)
        if self.off_policy is not OffPolicy.RECOMPUTE and not _has_logprobs(replayed.turns):
            raise CreditError(
                f"{chosen.id}: has no log-probs from when it was drawn, which off_policy {self.off_policy} compares "
                "with; use off_policy: recompute"
            )
        first = next(k for k, t in enumerate(group.trajectories) if t in group.counted)
        return replace(group, trajectories=(*group.trajectories[:first], replayed, *group.trajectories[first + 1 :]))

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        self.steps = heard.step
        for group in heard.groups:
            for trajectory in own(group):
                if trajectory.score is not None and trajectory.score.value > self.min_reward:
                    self.buffer.add(group.task.id, Stored(trajectory, heard.step))

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"steps": self.steps, "stored": self.buffer.state()}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.steps = state["steps"]
        self.buffer.load_state(state["stored"])

    def forget_versions(self) -> None:
        """See `KeepsDrawn`."""
        self.buffer.forget_versions()

    def metrics(self) -> dict[str, float]:
        """How many are stored."""
        return {"stored": float(len(self.buffer))}


def _has_logprobs(turns: Any) -> bool:
    return all(
        logprob == logprob
        for turn in turns
        for author, logprob in zip(turn.action.authors, turn.action.logprobs, strict=True)
        if author is Author.POLICY
    )
