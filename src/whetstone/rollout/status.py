"""Status of a running collection: rates, waits and stragglers.

Note:
    A mean over finished episodes is a mean over the fast ones. Stragglers are still running, and are counted among the
    running episodes.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field

from whetstone.waiting import Waits

_STRAGGLES = 3.0
"""Duration from which a running episode is a straggler, in multiples of the median of the last finished ones."""
_FEWEST_FINISHED = 8
"""Minimum number of finished episodes to detect stragglers: the first to finish are the fastest."""


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """Snapshot of the rates and counts of a collector, for progress lines and the dashboard."""

    episodes: int
    """Number of finished episodes."""
    episodes_per_second: float
    tokens_per_second: float
    """Action tokens of finished episodes per second."""
    running: int
    queued: int
    """Number of requested episodes that wait for a slot."""
    on_tools: float
    """Fraction of the running episodes that wait for their environment, from 0 to 1."""
    stragglers: int
    """Number of running episodes that have run more than three times as long as the median of the last finished ones.
    """
    longest_seconds: float
    """Duration of the oldest running episode so far, in seconds."""
    retried: int
    """Number of episodes that were played again after a failure of the infrastructure."""
    engine_busy: float | None = None
    """Fraction of the time since the previous status in which the engine computed, from 0 to 1; None if not reported.
    """

    def line(self) -> str:
        """Format the status as one line of text, such as `12 running  3.1 episodes/s  1,200 tok/s  on tools 25%`."""
        parts = [
            f"{self.running} running",
            f"{self.episodes_per_second:.1f} episodes/s",
            f"{self.tokens_per_second:,.0f} tok/s",
            f"on tools {self.on_tools:.0%}",
        ]
        if self.engine_busy is not None:
            parts.append(f"engine {self.engine_busy:.0%}")
        if self.stragglers:
            parts.append(f"{self.stragglers} stragglers, the longest {self.longest_seconds:.1f} s")
        if self.retried:
            parts.append(f"{self.retried} retried")
        return "  ".join(parts)


@dataclass(slots=True)
class Watch:
    """Counters of a collector, from which `RolloutStatus` is computed."""

    begun: float = field(default_factory=time.perf_counter)
    episodes: int = 0
    tokens: int = 0
    retried: int = 0
    queued: int = 0
    acting: int = 0
    """Number of running episodes whose actor is generating."""
    moved: int = 0
    """Number of waits for actors, environments, tools and rewards that have ended so far."""
    doing: dict[str, Waits] = field(default_factory=dict)
    """Waits of each episode by the episode's name."""
    started: dict[int, float] = field(default_factory=dict)
    """Start time of each running episode by its number."""
    _begun: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    _looked: tuple[float, float] | None = None

    def advance(self) -> None:
        """Count a wait of an episode that has ended; callback of `Waits`."""
        self.moved += 1

    def begin(self) -> int:
        """Record the start of an episode and return its number."""
        self._begun += 1
        self.started[self._begun] = time.perf_counter()
        return self._begun

    def end(self, episode: int, tokens: int) -> None:
        """Record the end of an episode.

        Args:
            episode: Number that `begin` returned.
            tokens: Number of action tokens of the episode.
        """
        self._recent.append(time.perf_counter() - self.started.pop(episode))
        self.episodes += 1
        self.tokens += tokens

    def drop(self, episode: int) -> None:
        """Remove an episode that ended without a result, such as an attempt that is retried."""
        del self.started[episode]

    def status(self, busy_seconds: float | None = None) -> RolloutStatus:
        """Compute the current `RolloutStatus` of the collector.

        Args:
            busy_seconds: Total seconds that the engine has computed; None if the engine does not report them.
        """
        now = time.perf_counter()
        spent = max(now - self.begun, 1e-9)
        running = len(self.started)
        ages = [now - began for began in list(self.started.values())]
        usual = statistics.median(list(self._recent)) if len(self._recent) >= _FEWEST_FINISHED else float("inf")
        share = None
        if busy_seconds is not None:
            then, before = self._looked or (self.begun, 0.0)
            share = min(1.0, (busy_seconds - before) / max(now - then, 1e-9))
            self._looked = (now, busy_seconds)
        return RolloutStatus(
            episodes=self.episodes,
            episodes_per_second=self.episodes / spent,
            tokens_per_second=self.tokens / spent,
            running=running,
            queued=self.queued,
            on_tools=1 - self.acting / running if running else 0.0,
            stragglers=sum(age > _STRAGGLES * usual for age in ages),
            longest_seconds=max(ages, default=0.0),
            retried=self.retried,
            engine_busy=share,
        )
