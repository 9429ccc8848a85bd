"""Short episodes first, longer ones later.

Easy to get wrong: a run that is resumed must have the horizon it would have had; the published code has the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Allowance, EpisodeKey


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonStages:
    """Turns an episode may have grow by stages of equal length (ScalingInter-RL).

    One stage of the environment's own `max_turns` is a fixed horizon.

    Source: AgentGym-RL 2025, arXiv:2509.08755
    """

    turns: Sequence[int]
    """Of each stage."""
    updates_per_stage: int
    """Updates a stage lasts; the last one stays."""
    max_turns: int = 10**9
    """The environment's; no stage may be longer."""

    def __post_init__(self) -> None:
        if not self.turns or min(self.turns) < 1:
            raise OptionError("turns", f"one or more of each stage, got {list(self.turns)}")
        if max(self.turns) > self.max_turns:
            raise OptionError("turns", f"at most environment.max_turns ({self.max_turns}), got {max(self.turns)}")
        if self.updates_per_stage < 1:
            raise OptionError("updates_per_stage", f"one update or more, got {self.updates_per_stage}")

    def __call__(self, occasion: EpisodeKey, /) -> Allowance:
        """See `Allocation`."""
        return Allowance(max_turns=self.turns[min(occasion.step // self.updates_per_stage, len(self.turns) - 1)])
