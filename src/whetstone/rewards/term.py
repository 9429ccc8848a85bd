"""What does one term of a composed reward count for? A weight that may fade, a gate, a factor, bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from whetstone.plugins import OptionError
from whetstone.rewards.protocol import Reward


@dataclass(frozen=True, slots=True)
class Fade:
    """A weight that goes from what it is to `to`, with the version of the policy that acted.

    Versions count updates of the weights, those of a warm-up among them.
    """

    to: float
    """The weight in the end."""
    over: int
    """Versions it takes."""
    start: int | None = None
    """The version it begins at; null: where reinforcement does."""
    shape: Literal["linear", "cosine"] = "linear"
    """The way down: a line, or half a cosine."""

    def __post_init__(self) -> None:
        if self.over < 1 or (self.start is not None and self.start < 0):
            raise ValueError(f"over is 1 or more and start 0 or more, got {self.over} and {self.start}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A reward in a sum."""

    reward: Reward
    weight: float = 1.0
    """What its value is multiplied by; below 0 it costs."""
    fade: Fade | None = None
    """Where the weight goes as the policy learns; null: it stays."""
    gate: str | list[str] | None = None
    """Terms that must reach `at_least`, each of them, for this one to count: of tiers, every higher one."""
    at_least: float = 1.0
    """What the gates' own values must reach."""
    times: str | None = None
    """A term whose value this one is multiplied by."""
    low: float | None = None
    """What its own value is not below, before any weight."""
    high: float | None = None
    """What it is not above: whatever counts something needs this."""

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise OptionError("low", f"is not above high ({self.high:g}), got {self.low:g}")
        if self.gate is None and self.at_least != 1.0:
            raise OptionError("at_least", "has no effect: there is no gate")

    def weight_at(self, version: int) -> float:
        """The weight when a policy of this version acted."""
        if self.fade is None:
            return self.weight
        done = min(1.0, max(0.0, (version - (self.fade.start or 0)) / self.fade.over))
        if self.fade.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.weight + done * (self.fade.to - self.weight)

    def begun(self, version: int) -> Term:
        """With a fade that begins where reinforcement does, at this version."""
        if self.fade is None or self.fade.start is not None:
            return self
        return replace(self, fade=replace(self.fade, start=version))

    def bounded(self, value: float) -> float:
        """The value within the bounds."""
        value = value if self.low is None else max(self.low, value)
        return value if self.high is None else min(self.high, value)

    @property
    def gates(self) -> tuple[str, ...]:
        """The terms that must be reached."""
        if self.gate is None:
            return ()
        return (self.gate,) if isinstance(self.gate, str) else tuple(self.gate)
