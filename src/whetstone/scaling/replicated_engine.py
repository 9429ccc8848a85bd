"""How do several engines look like one? An episode stays where its keys are; a new one goes where least is to be done.

    generate → the episode's replica, or the one with least to do for it → answer
             → gone → another replica, from the same tokens → answer

A replica that dies takes nobody with it: what was asked of it is asked of another, which computes the prompt afresh and
draws the same tokens, for a draw depends on its seed and its place alone. It comes back when it is ready again.

Easy to get wrong: a replica that began again has the weights it was made with. Until it was given those of now it draws
for nobody; it says so itself (`ready`), and is asked before it is trusted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

from whetstone.errors import InfrastructureError
from whetstone.inference.abilities import check_media
from whetstone.inference.protocol import (
    EngineAbilities,
    EngineStatistics,
    GenerateRequest,
    Generation,
    InFlight,
    Scores,
    Weights,
)
from whetstone.scaling.protocol import Gone, Replica, ReplicaStatus
from whetstone.scaling.routing import Sent, chain_of, cost
from whetstone.tokens import TokenSequence

T = TypeVar("T")
Routing = Literal["prefix", "load"]
"""By what a replica is chosen: `prefix`, what it has of the prompt and how much is asked of it, and an episode stays;
`load`, how much is asked of it alone, request by request."""

LOOK_SECONDS = 0.5
"""Between two looks at a replica."""
HEARD_SECONDS = 2.0
"""For how long what a replica said of others' requests is taken to hold."""


@dataclass(slots=True, eq=False)
class Seat:
    """A replica, as one who asks it knows it."""

    replica: Replica
    up: bool = False
    """Whether it can be asked."""
    mine: int = 0
    """Requests of this process in it."""
    others: int = 0
    """Requests of others in it, when it last answered."""
    heard: float = 0.0
    """When that was."""
    episodes: set[str] = field(default_factory=set)
    """Those that it may hold keys of."""
    sent: Sent = field(default_factory=Sent)
    """Beginnings of prompts that it was sent lately."""
    status: ReplicaStatus | None = None
    """When it was last looked at."""
    before: EngineStatistics = field(default_factory=EngineStatistics)
    """What was done by those it took the place of."""
    died: int = 0

    @property
    def load(self) -> tuple[int, int]:
        """How much is asked of it, and how many may ask it next."""
        known = time.perf_counter() - self.heard < HEARD_SECONDS
        return self.mine + (self.others if known else 0), len(self.episodes)

    def hear(self, asked: int) -> None:
        """It said how many requests are in it, of everyone."""
        self.others, self.heard = max(0, asked - self.mine), time.perf_counter()

    def see(self, status: ReplicaStatus) -> None:
        """It was looked at."""
        if self.status is not None and (self.status.process, self.status.node) != (status.process, status.node):
            self.before = summed(self.before, self.status.statistics)
            self.died += 1
        self.status = status
        self.hear(status.asked)


class ReplicatedEngine:
    """An engine of several replicas, as a process sees it that only asks: whoever gives them weights is elsewhere.

    Args:
        replicas: One or more, which have begun.
        late: Others, which are asked from when they are ready.
        abilities: What all of them give.
        patience_seconds: For which a request waits where all are gone.
        routing: By what a replica is chosen.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        late: Sequence[Replica] = (),
        abilities: EngineAbilities,
        patience_seconds: float,
        version: int = 0,
        routing: Routing = "prefix",
    ) -> None:
        self.abilities, self.patience_seconds, self.routing = abilities, patience_seconds, routing
        self.version = version
        """See `Engine.version`."""
        self.rerouted = 0
        """Requests that were asked of another replica because one was gone."""
        self.seats = [Seat(replica, up=True) for replica in replicas] + [Seat(replica) for replica in late]
        self._at: dict[str, Seat] = {}
        self._changed = asyncio.Event()
        self._looking: dict[Seat, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether it can answer."""
        return not self._closed

    @property
    def statistics(self) -> EngineStatistics:
        """What all replicas did, as far as was heard."""
        total = EngineStatistics()
        for seat in self.seats:
            total = summed(total, seat.before)
            if seat.status is not None:
                total = summed(total, seat.status.statistics)
        return total

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Engine.generate`.

        Raises:
            ValueError: The request has `on_tokens`: replicas return whole generations only.
        """
        if request.on_tokens is not None:
            raise ValueError("on_tokens: an engine of replicas returns whole generations; leave it out")
        check_media(request.prompt, self.abilities, engine="of replicas")

        async def ask(seat: Seat) -> Generation:
            answer = await seat.replica.generate(request)
            seat.hear(answer.asked)
            return answer.generation

        return await self._asked(ask, request.prompt.keys, request.episode)

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """See `Engine.score`."""
        check_media(tokens, self.abilities, engine="of replicas")
        return await self._asked(lambda seat: seat.replica.score(tokens, start=start), (), None)

    def abort(self, episode: str) -> None:
        """See `Engine.abort`."""
        for seat in self.seats:
            if episode in seat.episodes:
                seat.replica.abort(episode)

    def forget(self, episode: str) -> None:
        """See `Engine.forget`."""
        self._at.pop(episode, None)
        for seat in self.seats:
            if episode in seat.episodes:
                seat.episodes.discard(episode)
                seat.replica.forget(episode)

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Not here: the process that learns gives replicas their weights.

        Raises:
            InfrastructureError: Always.
        """
        raise InfrastructureError("weights are given to replicas by the process that learns")

    async def close(self) -> None:
        """Ask no more; the replicas stay."""
        self._closed = True
        self._changed.set()
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)

    @property
    def count(self) -> int:
        """Replicas that can be asked."""
        return sum(seat.up for seat in self.seats)

    def look_for_late_ones(self) -> None:
        """Begin to look whether those that are not up are ready. Where an event loop runs."""
        for seat in self.seats:
            if not seat.up:
                self._lose(seat)

    async def _asked(self, ask: Callable[[Seat], Awaitable[T]], keys: Sequence[int], episode: str | None) -> T:
        while True:
            seat = await self._seat(keys, episode)
            seat.mine += 1
            try:
                return await ask(seat)
            except Gone:
                self.rerouted += 1
                self._lose(seat)
            finally:
                seat.mine -= 1

    async def _seat(self, keys: Sequence[int], episode: str | None) -> Seat:
        """Where an episode stays, or where least is to be done for it.

        Raises:
            InfrastructureError: None can be asked, and none came back in time.
        """
        seat = self._at.get(episode) if episode is not None else None
        if seat is not None and seat.up and self.routing == "prefix":
            if len(self.seats) > 1:  # others may begin behind it
                seat.sent.note(chain_of(keys))
            return seat
        began = time.perf_counter()
        while not (up := [seat for seat in self.seats if seat.up]):
            left = self.patience_seconds - (time.perf_counter() - began)
            if self._closed or left <= 0:
                raise InfrastructureError(
                    f"none of {len(self.seats)} engine replicas can be asked, for {self.patience_seconds:g} s "
                    "(scale.start_timeout_seconds)"
                )
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue
        best = self._best(up, keys)
        if episode is not None:
            if seat is not None and not seat.up:
                seat.episodes.discard(episode)
            self._at[episode] = best
            best.episodes.add(episode)
        return best

    def _best(self, up: Sequence[Seat], keys: Sequence[int]) -> Seat:
        """Of those that can be asked, the one with least to do for a prompt."""
        if self.routing == "load" or len(up) == 1 or not keys:
            return min(up, key=lambda seat: seat.load)
        chain, fewest = chain_of(keys), min(len(seat.episodes) for seat in up)

        def done_soonest(seat: Seat) -> tuple[int, int]:
            asked, episodes = seat.load
            matched = seat.sent.matched(chain)
            return cost(len(keys), matched, asked=asked, more=episodes - fewest), episodes

        best = min(up, key=done_soonest)
        best.sent.note(chain)
        return best

    def _lose(self, seat: Seat) -> None:
        """It is not asked again before it says that it is ready, and has none of its keys then."""
        seat.up = False
        seat.sent.forget()
        if seat not in self._looking and not self._closed:
            looking = self._looking[seat] = asyncio.ensure_future(self._back(seat))
            looking.add_done_callback(lambda _: self._looking.pop(seat, None))

    async def _back(self, seat: Seat) -> None:
        """Look until it is ready."""
        while not seat.up:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                status = await seat.replica.status()
            except Gone:
                continue
            if status.ready:
                seat.see(status)
                seat.up = True
                self._changed.set()


def summed(one: EngineStatistics, other: EngineStatistics) -> EngineStatistics:
    """What two engines did together."""
    return replace(one, **{each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(one)})
