"""How quickly does one engine replica answer those who share its batch? Continuous batching, as a clock.

Everyone in the batch gets a token a step, so all of them see one clock of tokens, which runs the slower the more they
are; who joins at clock `v` and wants `n` tokens leaves at `v + n`. What has to be read first stops the clock. Nothing
has to be simulated between two who leave.

Easy to get wrong: the clock must be brought up to now *before* who is in the batch changes.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from whetstone.scaling.simulation_scenario import EngineRates


@dataclass(slots=True)
class Request:
    """One turn that is drawn."""

    episode: int
    tokens: float
    read: float
    """Tokens that have to be read before the first is drawn."""
    context: float
    """Tokens that have to be read again where its keys are lost."""
    asked: float = 0.0
    """When."""


_MOST_ROWS = 3
"""Rows that are gone through, of each who draws, at most."""
_LONGEST_WAIT = 8
"""Passes that somebody waits for company at most."""
_LOOKED_AT = 64
"""Those who are asked how long they have waited."""


@dataclass(slots=True)
class Replica:
    """One engine."""

    rates: EngineRates
    now: float = 0.0
    clock: float = 0.0
    reading: float = 0.0
    """Seconds of reading that are still to be done."""
    paused: int = 0
    """How many want it to stand still; it moves at 0."""
    alive: bool = True
    draining: bool = False
    """Whether nobody may enter until it is empty."""
    busy: float = 0.0
    """Seconds in which it had something to do and did it."""
    batched: float = 0.0
    """Sequences times seconds of those."""
    scheduled: int = 0
    """Raised whenever what was expected of it is void."""
    held: int = 0
    """Episodes that come to it with their next turn."""
    keys: int = 0
    """Raised when all keys it has are void: of older weights, or lost."""
    _running: list[tuple[float, int, Request]] = field(default_factory=list)
    _waiting: deque[Request] = field(default_factory=deque)
    _serial: int = 0

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place in it."""
        return len(self._waiting)

    @property
    def step(self) -> float:
        """Seconds of a step."""
        rates, drawing = self.rates, len(self._running)
        seconds = rates.step_seconds + rates.step_seconds_per_sequence * drawing
        if rates.step_seconds_per_row == 0:
            return seconds
        # of so many among all who have a row, wherever they lie: from the first to the last, in the mean
        among = max(drawing, self.held)
        rows = 1 + (drawing - 1) * (among + 1) / (drawing + 1) if drawing else 0.0
        return seconds + rates.step_seconds_per_row * min(rows, _MOST_ROWS * drawing)

    def catch_up(self, now: float) -> None:
        """Bring its clock to `now`."""
        spent, self.now = now - self.now, now
        if self.paused or not self.alive or not (self._running or self.reading):
            return
        self.busy += spent
        self.batched += spent * len(self._running)
        read = min(spent, self.reading)
        self.reading -= read
        if self._running:
            self.clock += (spent - read) / self.step

    def ask(self, request: Request) -> None:
        """Take a turn in; `catch_up` comes first. Those who ask at one moment enter by one pass (`next_change`)."""
        request.asked = self.now
        self._waiting.append(request)
        if self.rates.pass_seconds == 0:
            self.let_in()

    def next_change(self) -> float | None:
        """When the next one is done or enters, if nothing changes; None: never."""
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
        """Whether somebody waits who may enter."""
        return bool(self._waiting) and not self.draining and len(self._running) < self.rates.max_sequences

    @property
    def _enters_at(self) -> float:
        """When those who wait have waited long enough for company."""
        took, asked = self.rates.pass_seconds, [request.asked for request in islice(self._waiting, _LOOKED_AT)]
        together = (took * len(self._running) + sum(asked)) / len(asked)
        return max(self.now, min(together, asked[0] + _LONGEST_WAIT * took))

    def finished(self) -> list[Request]:
        """Those that are done by now, who leave; others enter in their place."""
        found = []
        while self._running and self.reading < 1e-9 and self._running[0][0] <= self.clock + 1e-6:
            found.append(heapq.heappop(self._running)[2])
        self.let_in()
        return found

    def let_in(self) -> None:
        """Those who wait enter as far as there are places, once they have waited long enough."""
        if self.paused or not self._has_room or self._enters_at > self.now + 1e-9:
            return
        self.reading += self.rates.pass_seconds
        while self._has_room:
            self._enter(self._waiting.popleft())

    def read_again(self) -> list[Request]:
        """The keys of all are void: those that run are read again now, the others when they enter."""
        found, waiting = [request for _, _, request in self._running], list(self._waiting)
        self.reading += self.rates.prefill_seconds_per_token * sum(request.context for request in found)
        self.reading += self.rates.pass_seconds if found else 0.0
        for request in waiting:
            request.read = request.context
        return [*found, *waiting]

    def drop_all(self) -> list[Request]:
        """Everyone leaves undone: it died."""
        found = [request for _, _, request in self._running] + list(self._waiting)
        self._running, self._waiting, self.reading = [], deque(), 0.0
        return found

    def remove(self, episodes: set[int]) -> None:
        """These leave undone."""
        self._running = [each for each in self._running if each[2].episode not in episodes]
        heapq.heapify(self._running)
        self._waiting = deque(each for each in self._waiting if each.episode not in episodes)

    def _enter(self, request: Request) -> None:
        self.reading += self.rates.prefill_seconds + request.read * self.rates.prefill_seconds_per_token
        self._serial += 1
        heapq.heappush(self._running, (self.clock + request.tokens, self._serial, request))
