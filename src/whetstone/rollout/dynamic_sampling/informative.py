"""A group that is all right or all wrong says nothing. Another is sampled in its place.

Easy to get wrong: it is success that must differ. A penalty for length makes every group look informative.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import pstdev
from typing import Literal

from whetstone.plugins import OptionError
from whetstone.trajectory import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Informative:
    """Groups count whose successes differ by more than `min_std`, a standard deviation (DAPO's dynamic sampling).

    UI-S1 asks for 0.3. A group of one always counts.

    Source: DAPO 2025, arXiv:2503.14476, and its code.
    """

    min_std: float = 0.0
    """Minimum standard deviation within a group; a group counts if it is above this."""
    signal: Literal["success", "reward"] = "success"
    """Value whose standard deviation is measured."""
    max_tried: int = 10
    """Groups sampled for an update, in multiples of those it takes, after which it is exhausted."""
    when_exhausted: Literal["stop", "continue"] = "stop"
    """Whether the run then stops, or the update takes those there are."""

    def __post_init__(self) -> None:
        if self.max_tried < 1:
            raise OptionError("max_tried", f"one or more, got {self.max_tried}")
        if self.signal == "success" and self.min_std >= 0.5:
            raise OptionError("min_std", f"successes of 0 and 1 never differ by more than 0.5, got {self.min_std:g}")

    def __call__(self, group: Group, /) -> bool:
        """See `DynamicSampling`."""
        if len(group.rewards) < 2:
            return len(group.rewards) == len(group.trajectories) == 1
        success = [float(t.solved) for t in group.counted]
        return pstdev(success if self.signal == "success" else group.rewards) > self.min_std
