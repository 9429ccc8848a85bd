"""Limit of concurrent episodes: fixed, or adapted to the pressure on the engine's KV cache.

    finished turns → (about one per running episode) → load of the engine → ConcurrencyController → EpisodeSlots

The limit grows while the KV cache has room, by half at first and by 5 % after the first overload. An overload shrinks
it by 15 %, and the youngest episodes above the limit are cancelled: they have the least to lose. They are played again
from their start when a slot is free, with the same seed, so they sample the same tokens.

If a full cache costs no throughput, as with slow tools and cheap prefill, it is no overload: then more episodes wait
for tools, and their prefixes are computed again.

Note:
    A context grows with every turn, so the cache fills long after an episode was admitted. Observations are therefore
    counted in turns, not in seconds, and the limit stays the same between both thresholds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from whetstone.cancellation import is_cancellation_requested
from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.protocol import EngineLoad

T = TypeVar("T")

_FIRST_GROWTH, _LATER_GROWTH, _SHRINK = 1.5, 1.05, 0.85
"""Factors of the limit: growth before and after the first overload, and the factor of an overload."""
_LOST_FRACTION = 0.05
"""Fraction of the running episodes whose keys were lost since the last observation, from which the cache is full."""
_TAKEN_FRACTION = 0.9
"""Fraction of the slots that are taken while the throughput is measured."""
_FULL_OBSERVATIONS = 2
"""Number of consecutive observations of a full cache that count as an overload."""
_SETTLING_OBSERVATIONS = 2
"""Number of observations after a shrink in which the limit does not change, so that its effect is seen."""
_NEW_WEIGHT, _FORGET, _SLOWER = 0.3, 0.995, 0.97
"""Weight of a new value in the moving mean of the throughput, factor of the best mean per observation, and the fraction
of the best mean below which the throughput has fallen."""


@dataclass(slots=True)
class ConcurrencyController:
    """Adapts the limit of concurrent episodes to the load of an engine; a pure function of the observations.

    Raises:
        ValueError: If the bounds or thresholds are not in ascending order.
    """

    limit: int = 32
    """Current maximum number of concurrent episodes."""
    min_limit: int = 4
    """Smallest limit."""
    max_limit: int = 512
    """Largest limit."""
    grow_below: float = 0.8
    """Used fraction of the KV cache below which the limit grows."""
    shrink_above: float = 0.95
    """Used fraction of the KV cache above which it is full."""
    has_overloaded: bool = False
    """Whether an overload was observed, after which the limit grows slowly."""
    _num_full: int = 0
    _settling: int = 0
    _lost: int | None = None
    _was_taken: bool = False
    _rate: float = 0.0
    _best_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_limit <= self.limit <= self.max_limit:
            raise ValueError(
                f"limit: must be from min_limit {self.min_limit} to max_limit {self.max_limit}, got {self.limit}"
            )
        if not 0 < self.grow_below < self.shrink_above <= 1:
            raise ValueError(
                f"grow_below: must be below shrink_above {self.shrink_above:g} and above 0, got {self.grow_below:g}"
            )

    def observe_load(self, load: EngineLoad, *, running: int, turns: int, seconds: float) -> int:
        """Return the new limit.

        The cache is full above `shrink_above`, or if more than 5 % of the episodes lost their keys. An overload is a
        full cache in two observations in a row, if the throughput has fallen by 3 % or none was observed before. After
        one, two observations do not change the limit. It grows only if all slots are taken and hardly any request waits
        in the engine.

        Args:
            load: Load of the engine.
            running: Number of running episodes.
            turns: Number of turns that finished since the last observation.
            seconds: Time since the last observation, in seconds.
        """
        lost = load.preemptions - (load.preemptions if self._lost is None else self._lost)
        self._lost = load.preemptions
        was_taken, self._was_taken = self._was_taken, running >= _TAKEN_FRACTION * self.limit
        if seconds > 0 and was_taken and self._was_taken:  # not the end of a step, and not the update after it
            self._rate += (_NEW_WEIGHT if self._rate else 1.0) * (turns / seconds - self._rate)
        self._best_rate = max(self._rate, self._best_rate * _FORGET)
        is_slower = self._rate < _SLOWER * self._best_rate
        is_full = load.kv_usage > self.shrink_above or lost > _LOST_FRACTION * running
        self._num_full = self._num_full + 1 if is_full else 0
        has_room = load.kv_usage < self.grow_below and 10 * load.waiting <= running
        if self._settling:
            self._settling -= 1
        elif self._num_full >= _FULL_OBSERVATIONS and (is_slower or not self.has_overloaded):
            self.has_overloaded, self._num_full, self._settling = True, 0, _SETTLING_OBSERVATIONS
            self._best_rate = self._rate
            self.limit = max(self.min_limit, int(min(self.limit, max(running, 1)) * _SHRINK))
        elif has_room and running >= self.limit and not (is_full and is_slower):
            factor = _LATER_GROWTH if self.has_overloaded or is_full else _FIRST_GROWTH
            self.limit = min(self.max_limit, max(self.limit + 1, int(self.limit * factor)))
        return self.limit


class EpisodeCancelled(Exception):
    """A running episode was cancelled because the limit of concurrent episodes shrank; it must be played again."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """Running attempt of an episode that can be cancelled."""

    task: asyncio.Future[Any]
    is_cancelled: bool = False


@dataclass(slots=True)
class EpisodeSlots:
    """Slots of concurrent episodes, with a limit that can change. Waiting callers receive slots in order of arrival."""

    limit: int
    """Maximum number of slots in use; if it shrank, more can be in use."""
    num_used: int = 0
    """Number of slots in use."""
    num_cancelled: int = 0
    """Number of episodes that were cancelled so far."""
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    _attempts: dict[int, _Attempt] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether a new caller has to wait."""
        return self.num_used >= self.limit or any(not waiter.done() for waiter in self._waiting)

    async def take_slot(self, *, is_first: bool = False) -> None:
        """Wait for a slot.

        Args:
            is_first: Whether the caller receives a slot before all who wait.
        """
        if not self.is_full:
            self.num_used += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if is_first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the slot was already assigned
                self.return_slot()
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    def return_slot(self) -> None:
        """Return a slot."""
        self.num_used -= 1
        self._assign_free()

    async def yield_slot(self) -> None:
        """Return a slot and wait for one again, before all other callers.

        The caller has a slot afterwards, also if the wait is cancelled.
        """
        self.return_slot()
        try:
            await self.take_slot(is_first=True)
        except asyncio.CancelledError:
            self.num_used += 1
            raise

    def set_limit(self, limit: int) -> None:
        """Change the limit; cancel the youngest attempts above it."""
        self.limit = limit
        self._assign_free()
        running = [attempt for _, attempt in sorted(self._attempts.items()) if not attempt.is_cancelled]
        excess = self.num_used - limit - (len(self._attempts) - len(running))
        for attempt in running[len(running) - max(0, min(excess, len(running))) :]:
            attempt.is_cancelled = True
            attempt.task.cancel()
            self.num_cancelled += 1

    async def run_attempt(self, age: int, play: Coroutine[Any, Any, T]) -> T:
        """Run an attempt of an episode, which `set_limit` can cancel.

        Args:
            age: Number of the episode in the order in which episodes started; kept when it is played again.
            play: Plays the episode.

        Raises:
            EpisodeCancelled: If the attempt was cancelled because the limit shrank.
        """
        task = asyncio.ensure_future(play)
        attempt = self._attempts[age] = _Attempt(task)
        try:
            return await task
        except asyncio.CancelledError:
            if is_cancellation_requested() or not attempt.is_cancelled:
                raise
            raise EpisodeCancelled from None
        finally:
            del self._attempts[age]

    def _assign_free(self) -> None:
        while self._waiting and self.num_used < self.limit:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.num_used += 1
                waiter.set_result(None)


@dataclass(slots=True)
class AdaptiveLimit:
    """Changes the limit of episode slots by a controller, after about one turn of each running episode."""

    controller: ConcurrencyController
    slots: EpisodeSlots
    measure_load: Callable[[], Awaitable[EngineLoad]]
    """Function that returns the load of the engine."""
    on_change: Callable[[], None]
    """Callback after a change of the limit."""
    error: EngineError | None = None
    """Error of an engine that reports no load."""
    load: EngineLoad | None = None
    """Last load; None before the first."""
    _num_turns: int = 0
    _observing: asyncio.Task[None] | None = None
    _observed_at: float | None = None

    def count_turn(self) -> None:
        """Count a finished turn; observe the load if each running episode has had about one."""
        self._num_turns += 1
        if self._num_turns >= self.slots.num_used and (self._observing is None or self._observing.done()):
            self._observing = asyncio.ensure_future(self.observe())

    async def observe(self) -> None:
        """Measure the load and change the limit; a failed measurement changes nothing."""
        try:
            self.load = await self.measure_load()
        except InfrastructureError:
            return
        except EngineError as error:
            self.error = error
            return
        now = asyncio.get_running_loop().time()
        seconds, self._observed_at = now - (self._observed_at if self._observed_at is not None else now), now
        turns, self._num_turns = self._num_turns, 0
        limit = self.controller.observe_load(self.load, running=self.slots.num_used, turns=turns, seconds=seconds)
        if limit != self.slots.limit:
            self.slots.set_limit(limit)
            self.on_change()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the limit."""
        metrics = {
            "rollout/episode_limit": float(self.slots.limit),
            "rollout/episodes_cancelled": float(self.slots.num_cancelled),
        }
        return metrics if self.load is None else metrics | {"rollout/kv_cache_usage": self.load.kv_usage}
