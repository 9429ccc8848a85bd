"""Dynamic sampling that rejects groups without variance: all solved or all failed.

Note:
    The success must vary, not the reward. With a length penalty every group has variance in its rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import pstdev
from typing import Literal

from whetstone.plugins import OptionError
from whetstone.trajectory import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class NonzeroVariance:
    """Accepts groups whose successes have a standard deviation above `min_std` (DAPO's dynamic sampling).

    UI-S1 uses 0.3. A group of one is always accepted.

    Source: DAPO 2025, arXiv:2503.14476, and its code.
    """

    min_std: float = 0.0
    """Standard deviation within a group above which the group is accepted."""
    signal: Literal["success", "reward"] = "success"
    """Value whose standard deviation is measured."""
    max_tried: int = 10
    """Maximum number of groups sampled for an update, in multiples of the number that the update takes."""
    when_exhausted: Literal["stop", "continue"] = "stop"
    """Action after `max_tried`: `stop` the run, or `continue` with the accepted groups."""

    def __post_init__(self) -> None:
        if self.max_tried < 1:
            raise OptionError("max_tried", f"must be at least 1, got {self.max_tried}")
        if self.signal == "success" and self.min_std >= 0.5:
            raise OptionError(
                "min_std", f"must be below 0.5, the maximum for successes of 0 and 1, got {self.min_std:g}"
            )

    def __call__(self, group: Group, /) -> bool:
        """Return whether an update accepts the group; see `DynamicSampling.__call__`."""
        if len(group.rewards) < 2:
            return len(group.rewards) == len(group.trajectories) == 1
        success = [float(t.solved) for t in group.counted]
        return pstdev(success if self.signal == "success" else group.rewards) > self.min_std
