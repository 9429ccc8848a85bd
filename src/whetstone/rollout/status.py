"""What is going on in a collection right now? Rates, who waits for whom, and who is late.

Easy to get wrong: a mean over finished episodes is a mean over the quick ones. Late are those that run on, and
they are counted among the running.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field

from whetstone.waiting import Waits

_STRAGGLES = 3.0
"""An episode straggles when it has run so many times the median of those last finished."""
_FEWEST_FINISHED = 8
"""Before so many have finished nobody is late: the first to finish are the quickest."""


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """A collection at one moment."""

    episodes: int
    """Finished."""
    episodes_per_second: float
    tokens_per_second: float
    """Action tokens of finished episodes."""
    running: int
    queued: int
    """Episodes asked for that wait for a place."""
    on_tools: float
    """Share of the running ones that wait for their environment, from 0 to 1."""
    stragglers: int
    """Running ones that take much longer than those last finished did."""
    longest_seconds: float
    """How long the one that has run longest has."""
    retried: int
    """Episodes played again because something failed that was not theirs."""
    engine_busy: float | None = None
    """Share of the time since the last look that the engine computed; None where it does not say."""

    def line(self) -> str:
        """For a person."""
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
    """Counts what a collector does; `status` reads it."""

    begun: float = field(default_factory=time.perf_counter)
    episodes: int = 0
    tokens: int = 0
    retried: int = 0
    queued: int = 0
    acting: int = 0
    """Running episodes whose actor is at work."""
    moved: int = 0
    """Waits for actors, environments, tools and rewards that ended so far."""
    doing: dict[str, Waits] = field(default_factory=dict)
    """By episode, the parts it waits for."""
    started: dict[int, float] = field(default_factory=dict)
    """When each running episode began."""
    _begun: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    _looked: tuple[float, float] | None = None

    def advance(self) -> None:
        """A wait of an episode ended."""
        self.moved += 1

    def begin(self) -> int:
        """An episode runs; the number tells it from the others."""
        self._begun += 1
        self.started[self._begun] = time.perf_counter()
        return self._begun

    def end(self, episode: int, tokens: int) -> None:
        """It is over; it sampled so many tokens."""
        self._recent.append(time.perf_counter() - self.started.pop(episode))
        self.episodes += 1
        self.tokens += tokens

    def drop(self, episode: int) -> None:
        """It came to nothing."""
        del self.started[episode]

    def status(self, busy_seconds: float | None = None) -> RolloutStatus:
        """The moment.

        Args:
            busy_seconds: For how long the engine has computed in all.
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
