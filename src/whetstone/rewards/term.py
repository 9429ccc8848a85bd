"""Term of a composed reward: weight with an optional schedule, gate, factor and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from whetstone.plugins import OptionError
from whetstone.rewards.protocol import Reward


@dataclass(frozen=True, slots=True)
class Fade:
    """Schedule of a weight from its initial value to `to`, by the version of the policy that acted.

    Versions count updates of the weights, including those of a warm-up.
    """

    to: float
    """Final weight."""
    over: int
    """Number of versions until the final weight."""
    start: int | None = None
    """First version of the schedule; null: the first version of the reinforcement stage."""
    shape: Literal["linear", "cosine"] = "linear"
    """Shape of the schedule: linear, or half a cosine."""

    def __post_init__(self) -> None:
        if self.over < 1 or (self.start is not None and self.start < 0):
            raise ValueError(f"over must be at least 1 and start at least 0, got {self.over} and {self.start}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Reward in a sum."""

    reward: Reward
    weight: float = 1.0
    """Factor of the value; below 0 for a penalty."""
    fade: Fade | None = None
    """Schedule of the weight; null: constant."""
    gate: str | list[str] | None = None
    """Names of terms that must all reach `at_least` for this one to count; for tiers, all higher tiers."""
    at_least: float = 1.0
    """Minimum value of the gate terms."""
    times: str | None = None
    """Name of a term whose value is a factor of this one."""
    low: float | None = None
    """Lower bound of the value, before the weight."""
    high: float | None = None
    """Upper bound of the value; terms that count something need it."""

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise OptionError("low", f"must be at most high ({self.high:g}), got {self.low:g}")
        if self.gate is None and self.at_least != 1.0:
            raise OptionError("at_least", "has no effect without gate")

    def weight_at(self, version: int) -> float:
        """Return the weight for a policy version."""
        if self.fade is None:
            return self.weight
        done = min(1.0, max(0.0, (version - (self.fade.start or 0)) / self.fade.over))
        if self.fade.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.weight + done * (self.fade.to - self.weight)

    def begun(self, version: int) -> Term:
        """Return the term with a schedule that starts at this version, the start of reinforcement."""
        if self.fade is None or self.fade.start is not None:
            return self
        return replace(self, fade=replace(self.fade, start=version))

    def bounded(self, value: float) -> float:
        """Clamp a value to the bounds."""
        value = value if self.low is None else max(self.low, value)
        return value if self.high is None else min(self.high, value)

    @property
    def gates(self) -> tuple[str, ...]:
        """Return the names of the gate terms."""
        if self.gate is None:
            return ()
        return (self.gate,) if isinstance(self.gate, str) else tuple(self.gate)
