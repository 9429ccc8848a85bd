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
"""Number of most recent durations from which a deadline is derived."""
Timeout = float | Literal["auto", "none"]
"""Value of a timeout key: seconds; `auto`, which derives the deadline from measured times; or `none`."""


@dataclass(slots=True)
class MeasuredDeadline:
    """Deadline that is fixed, or derived from measured durations so that slow tools fit and hanging episodes end.

        deadline = max(floor, factor × 95th percentile of the last 1,000 durations)

    With `timeout: auto` there is no deadline until `count` durations are measured. Durations that passed the deadline
    are not measured.
    """

    timeout: Timeout = "none"
    floor: float = 0.0
    factor: float = 0.0
    count: int = 1
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _seconds: float | None = None
    _stale: int = 0

    def add(self, durations: Iterable[float]) -> None:
        """Record durations in seconds; the deadline is recomputed after every `count` durations. No effect unless
        `auto`.
        """
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
        """Return the deadline in seconds.

        Returns None without a deadline, or if too few durations are measured.
        """
        return self.timeout if isinstance(self.timeout, int | float) else self._seconds


def turn_deadline(timeout: Timeout) -> MeasuredDeadline:
    """Create the deadline of turns: 20 times the 95th percentile and at least a minute if measured."""
    return MeasuredDeadline(timeout, floor=60.0, factor=20.0, count=64)


def group_deadline(timeout: Timeout) -> MeasuredDeadline:
    """Create the deadline of groups: 10 times the 95th percentile and at least five minutes if measured."""
    return MeasuredDeadline(timeout, floor=300.0, factor=10.0, count=16)


def step_deadline(timeout: Timeout) -> MeasuredDeadline:
    """Create the deadline of steps: 10 times the 95th percentile and at least half an hour if measured."""
    return MeasuredDeadline(timeout, floor=1800.0, factor=10.0, count=5)


def deadline_metrics(deadlines: Mapping[str, MeasuredDeadline]) -> dict[str, float]:
    """Return the current deadlines in seconds by metric name.

    A deadline that is not set is left out.
    """
    return {name: each.seconds for name, each in deadlines.items() if each.seconds is not None}


@dataclass(slots=True)
class GroupClock:
    """Clock of one group, from the start of its first episode, with an optional deadline."""

    timeout_seconds: float | None
    """Deadline in seconds after the start of the first episode; None: no deadline."""
    began: float | None = None

    def start(self) -> None:
        """Start the clock when the first episode of the group gets its slot.

        Later calls have no effect.
        """
        self.began = self.began or time.perf_counter()

    @property
    def elapsed_seconds(self) -> float:
        """Return the seconds since the first episode of the group started; 0 before that."""
        return time.perf_counter() - (self.began or time.perf_counter())

    @property
    def is_over(self) -> bool:
        """Return whether the deadline of the group has passed, so that no further attempt starts."""
        return self.timeout_seconds is not None and self.elapsed_seconds >= self.timeout_seconds

    def limit_episode(self, limits: EpisodeLimits) -> EpisodeLimits:
        """Return the limits of an episode that starts now; its timeout is at most the group's remaining time."""
        if self.timeout_seconds is None:
            return limits
        left = self.timeout_seconds - self.elapsed_seconds
        return replace(limits, timeout_seconds=max(0.0, min(limits.timeout_seconds, left)))
