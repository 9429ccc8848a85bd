"""Deadlines of turns, groups and steps: fixed, or derived from measured times."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from whetstone.rollout.episode_inputs import EpisodeLimits

_KEPT = 1000
"""Most recent durations that a deadline is derived from."""
Timeout = float | Literal["auto", "none"]
"""Value of a recipe key: seconds, derived from measured times, or no deadline."""


@dataclass(slots=True)
class MeasuredDeadline:
    """A deadline that leaves room for tools that are slow by nature, and ends what hangs.

        deadline = max(floor, factor × 95th percentile of the last 1,000 durations)

    There is no deadline until `count` durations are measured. What passed its deadline does not count.
    """

    timeout: Timeout = "none"
    floor: float = 0.0
    factor: float = 0.0
    count: int = 1
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _seconds: float | None = None
    _stale: int = 0

    def add(self, durations: Iterable[float]) -> None:
        """Add durations in seconds."""
        if self.timeout == "auto":
            measured = list(durations)
            self._durations.extend(measured)
            self._stale += len(measured)
            if self._stale >= self.count:
                self._stale = 0
                percentile = statistics.quantiles([*self._durations, 0.0], n=20, method="inclusive")[-1]
                self._seconds = max(self.floor, self.factor * percentile)

    @property
    def seconds(self) -> float | None:
        """Return the deadline in seconds; None if there is none, or not yet."""
        return self.timeout if isinstance(self.timeout, int | float) else self._seconds


def turn_deadline(timeout: Timeout) -> MeasuredDeadline:
    """Return the deadline of turns: at least a minute."""
    return MeasuredDeadline(timeout, floor=60.0, factor=20.0, count=64)


def group_deadline(timeout: Timeout) -> MeasuredDeadline:
    """Return the deadline of groups: at least five minutes."""
    return MeasuredDeadline(timeout, floor=300.0, factor=10.0, count=16)


def step_deadline(timeout: Timeout) -> MeasuredDeadline:
    """Return the deadline for the groups of a step: at least half an hour."""
    return MeasuredDeadline(timeout, floor=1800.0, factor=10.0, count=5)


def deadline_metrics(deadlines: Mapping[str, MeasuredDeadline]) -> dict[str, float]:
    """Return the deadlines that are set, by metric."""
    return {name: each.seconds for name, each in deadlines.items() if each.seconds is not None}


@dataclass(slots=True)
class GroupClock:
    """Time that a group has used."""

    timeout_seconds: float | None
    """Deadline in seconds from its first episode; None: no deadline."""
    began: float | None = None

    def start(self) -> None:
        """Start the clock when the first episode has its slot."""
        self.began = self.began or time.perf_counter()

    @property
    def spent(self) -> float:
        """Return the seconds since its first episode started; 0 before that."""
        return time.perf_counter() - (self.began or time.perf_counter())

    @property
    def is_over(self) -> bool:
        """Return whether no time is left for another attempt."""
        return self.timeout_seconds is not None and self.spent >= self.timeout_seconds

    def bound(self, limits: EpisodeLimits) -> EpisodeLimits:
        """Return the limits of an episode that starts now."""
        if self.timeout_seconds is None:
            return limits
        left = self.timeout_seconds - self.spent
        return replace(limits, timeout_seconds=max(0.0, min(limits.timeout_seconds, left)))
