"""Term of a composed reward: weight with an optional schedule, gate, factor and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from whetstone.plugins import OptionError
from whetstone.rewards.protocol import Reward


@dataclass(frozen=True, slots=True)
class Fade:
    """Schedule of a term's weight from its initial value to `to`, by the version of the weights that sampled the
    episode.

    Versions count updates of the weights, including those of a warm-up.
    """

    to: float
    """Weight at the end of the schedule."""
    over: int
    """Number of versions from the start to the end of the schedule."""
    start: int | None = None
    """First version of the schedule; null: the first version of the reinforcement stage."""
    shape: Literal["linear", "cosine"] = "linear"
    """Shape of the schedule: `linear`, or `cosine` for half a cosine."""

    def __post_init__(self) -> None:
        if self.over < 1 or (self.start is not None and self.start < 0):
            raise ValueError(f"over must be at least 1 and start at least 0, got {self.over} and {self.start}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Term of a composed reward: a reward with a weight, and optionally a gate, a factor, a schedule and bounds."""

    reward: Reward
    weight: float = 1.0
    """Factor of the term's value; below 0 for a penalty."""
    fade: Fade | None = None
    """Schedule of the weight; null: constant weight."""
    learned: bool = False
    """Whether the weight is multiplied by a factor in [0, 1] that is learned from the term `primary`."""
    task_weight: str | None = None
    """Key of the task's private data with a number that multiplies the weight; null: equal weights of all tasks."""
    gate: str | list[str] | None = None
    """Names of terms that must all reach `at_least` for this term to count; for tiers, name all higher tiers."""
    at_least: float = 1.0
    """Minimum value of the gate terms."""
    times: str | None = None
    """Name of another term whose value multiplies this term."""
    low: float | None = None
    """Lower bound of the term's value, before the weight."""
    high: float | None = None
    """Upper bound of the term's value, before the weight; terms that count something require it."""

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise OptionError("low", f"must be at most high ({self.high:g}), got {self.low:g}")
        if self.gate is None and self.at_least != 1.0:
            raise OptionError("at_least", "has no effect without gate; set gate, or remove at_least")

    def weight_at(self, version: int) -> float:
        """Return the weight for an episode that this version of the weights sampled."""
        if self.fade is None:
            return self.weight
        done = min(1.0, max(0.0, (version - (self.fade.start or 0)) / self.fade.over))
        if self.fade.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.weight + done * (self.fade.to - self.weight)

    def start_fade_at(self, version: int) -> Term:
        """Return the term with a schedule that starts at this version, unless the recipe sets its start.

        Called with the version at the start of the reinforcement stage.
        """
        if self.fade is None or self.fade.start is not None:
            return self
        return replace(self, fade=replace(self.fade, start=version))

    def clamp_value(self, value: float) -> float:
        """Clamp a value of the term's reward to `low` and `high`."""
        value = value if self.low is None else max(self.low, value)
        return value if self.high is None else min(self.high, value)

    @property
    def has_varying_weight(self) -> bool:
        """Return whether the weight differs between episodes, so that the contribution is logged."""
        return self.fade is not None or bool(self.gate_names or self.times or self.learned or self.task_weight)

    @property
    def gate_names(self) -> tuple[str, ...]:
        """Return the names of the gate terms as a tuple; empty without a gate."""
        if self.gate is None:
            return ()
        return (self.gate,) if isinstance(self.gate, str) else tuple(self.gate)
