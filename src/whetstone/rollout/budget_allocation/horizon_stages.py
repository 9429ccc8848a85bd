"""Budget allocation with a growing horizon: short episodes first, longer ones later.

Note:
    A resumed run must have the same horizon as an uninterrupted one; the published code has that of the next stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import EpisodeKey, GroupBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonStages:
    """Increases the maximum number of turns in stages of equal length (ScalingInter-RL).

    One stage with the environment's `max_turns` is a fixed horizon.

    Source: AgentGym-RL 2025, arXiv:2509.08755
    """

    turns: Sequence[int]
    """Maximum number of turns in each stage."""
    updates_per_stage: int
    """Number of updates per stage; the last stage lasts until the end of training."""
    max_turns: int = 10**9
    """Maximum number of turns that the environment allows; no stage may exceed it."""

    def __post_init__(self) -> None:
        if not self.turns or min(self.turns) < 1:
            raise OptionError("turns", f"must be at least 1 in each stage, got {list(self.turns)}")
        if max(self.turns) > self.max_turns:
            raise OptionError(
                "turns", f"must be at most environment.max_turns ({self.max_turns}), got {max(self.turns)}"
            )
        if self.updates_per_stage < 1:
            raise OptionError("updates_per_stage", f"must be at least 1 update, got {self.updates_per_stage}")

    def __call__(self, episode_key: EpisodeKey, /) -> GroupBudget:
        """Return the budget of a group that starts now; see `Allocation.__call__`."""
        return GroupBudget(max_turns=self.turns[min(episode_key.step // self.updates_per_stage, len(self.turns) - 1)])
