"""Simulated engine replica with continuous batching, modeled as a clock of tokens.

Every sequence in the batch gets one token per step, so all share one clock of tokens, which runs slower with more
sequences. A sequence that enters at clock `v` and samples `n` tokens leaves at `v + n`. Prefill stops the clock.
Nothing has to be simulated between two departures.

Note:
    The clock must be advanced to the current time *before* the batch changes.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from whetstone.scaling.simulation_scenario import EngineRates


@dataclass(slots=True)
class SimulatedRequest:
    """Request for one turn of a simulated episode."""

    episode: int
    """Number of the episode."""
    tokens: float
    """Number of tokens to sample."""
    read: float
    """Number of tokens to prefill before the first token is sampled."""
    context: float
    """Number of tokens to prefill if the KV cache is lost."""
    requested_at: float = 0.0
    """Simulated time of the request, in seconds."""


_MOST_ROWS = 3
"""Maximum number of KV slots that are read per sampled sequence."""
_LONGEST_WAIT = 8
"""Maximum number of passes for which a request waits for others to join."""
_LOOKED_AT = 64
"""Maximum number of requests whose waiting times are added."""


@dataclass(slots=True)
class SimulatedReplica:
    """Simulated engine replica: a batch of running requests, a queue, and a clock of tokens."""

    rates: EngineRates
    now: float = 0.0
    """Simulated time up to which the replica has advanced, in seconds."""
    clock: float = 0.0
    """Token clock: number of tokens that a sequence in the batch has sampled since the start of the run."""
    reading: float = 0.0
    """Remaining seconds of prefill."""
    paused: int = 0
    """Number of components that pause the replica; it runs at 0."""
    alive: bool = True
    draining: bool = False
    """Whether no request may enter the batch until it is empty."""
    busy: float = 0.0
    """Seconds in which the replica worked."""
    batched: float = 0.0
    """Sum of the batch size over the busy seconds."""
    scheduled: int = 0
    """Counter that is incremented whenever the replica's scheduled event becomes void."""
    num_assigned: int = 0
    """Number of episodes whose next turn the replica will sample."""
    keys: int = 0
    """Counter that is incremented when the whole KV cache becomes void: of older weights, or lost."""
    _running: list[tuple[float, int, SimulatedRequest]] = field(default_factory=list)
    _waiting: deque[SimulatedRequest] = field(default_factory=deque)
    _serial: int = 0

    @property
    def running(self) -> int:
        """Number of sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot in the batch."""
        return len(self._waiting)

    @property
    def step(self) -> float:
        """Seconds of a decode step with the current batch."""
        rates, drawing = self.rates, len(self._running)
        seconds = rates.step_seconds + rates.step_seconds_per_sequence * drawing
        if rates.step_seconds_per_row == 0:
            return seconds
        # expected distance from the first to the last sampled sequence among all occupied KV slots
        among = max(drawing, self.num_assigned)
        rows = 1 + (drawing - 1) * (among + 1) / (drawing + 1) if drawing else 0.0
        return seconds + rates.step_seconds_per_row * min(rows, _MOST_ROWS * drawing)

    def catch_up(self, now: float) -> None:
        """Advance the replica to the simulated time `now`."""
        spent, self.now = now - self.now, now
        if self.paused or not self.alive or not (self._running or self.reading):
            return
        self.busy += spent
        self.batched += spent * len(self._running)
        read = min(spent, self.reading)
        self.reading -= read
        if self._running:
            self.clock += (spent - read) / self.step

    def ask(self, request: SimulatedRequest) -> None:
        """Add a request to the queue; call `catch_up` first.

        Simultaneous requests enter the batch in one prefill pass (`next_change`).
        """
        request.requested_at = self.now
        self._waiting.append(request)
        if self.rates.pass_seconds == 0:
            self.let_in()

    def next_change(self) -> float | None:
        """Return the time of the next departure or entry; None if nothing will change."""
        if self.paused or not self.alive:
            return None
        ends = []
        if self._running:
            ends.append(self.now + self.reading + max(0.0, self._running[0][0] - self.clock) * self.step)
        if self._has_room:
            ends.append(self._enters_at)
        return min(ends, default=None)

    @property
    def _has_room(self) -> bool:
        """Whether a waiting request may enter."""
        return bool(self._waiting) and not self.draining and len(self._running) < self.rates.max_sequences

    @property
    def _enters_at(self) -> float:
        """Time at which the queued requests have waited long enough for others to join."""
        took, request_times = (
            self.rates.pass_seconds,
            [request.requested_at for request in islice(self._waiting, _LOOKED_AT)],
        )
        together = (took * len(self._running) + sum(request_times)) / len(request_times)
        return max(self.now, min(together, request_times[0] + _LONGEST_WAIT * took))

    def finished(self) -> list[SimulatedRequest]:
        """Remove and return the requests that have finished; queued ones enter the batch."""
        finished = []
        while self._running and self.reading < 1e-9 and self._running[0][0] <= self.clock + 1e-6:
            finished.append(heapq.heappop(self._running)[2])
        self.let_in()
        return finished

    def let_in(self) -> None:
        """Move queued requests into the batch while it has room and they have waited long enough for others."""
        if self.paused or not self._has_room or self._enters_at > self.now + 1e-9:
            return
        self.reading += self.rates.pass_seconds
        while self._has_room:
            self._enter(self._waiting.popleft())

    def read_again(self) -> list[SimulatedRequest]:
        """Void the KV cache and return all requests.

        Running requests are prefilled again at once, queued ones when they enter the batch.
        """
        running, waiting = [request for _, _, request in self._running], list(self._waiting)
        self.reading += self.rates.prefill_seconds_per_token * sum(request.context for request in running)
        self.reading += self.rates.pass_seconds if running else 0.0
        for request in waiting:
            request.read = request.context
        return [*running, *waiting]

    def drop_all(self) -> list[SimulatedRequest]:
        """Remove and return all requests, after a failure of the replica."""
        dropped = [request for _, _, request in self._running] + list(self._waiting)
        self._running, self._waiting, self.reading = [], deque(), 0.0
        return dropped

    def remove(self, episodes: set[int]) -> None:
        """Remove the requests of the given episodes."""
        self._running = [each for each in self._running if each[2].episode not in episodes]
        heapq.heapify(self._running)
        self._waiting = deque(each for each in self._waiting if each.episode not in episodes)

    def _enter(self, request: SimulatedRequest) -> None:
        self.reading += self.rates.prefill_seconds + request.read * self.rates.prefill_seconds_per_token
        self._serial += 1
        heapq.heappush(self._running, (self.clock + request.tokens, self._serial, request))
