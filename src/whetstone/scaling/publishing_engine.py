"""Who gives replicas their weights, and looks after those that began again? The process that learns, which has them.

    load_weights → what changed, put once → every replica that is up, side by side → acknowledged → the version
    a replica that began again → all that changed since it was made → ready → it is asked again

Easy to get wrong: a parcel of changes fits one version. A replica that is not at it says so and counts as gone; it is
given the whole before anybody asks it again, so none ever draws from half of one version and half of another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from whetstone.compute_thread import run_in_compute_thread
from whetstone.inference.protocol import EngineAbilities, InFlight, Weights
from whetstone.scaling.protocol import Gone, Parcel, Replica, Say
from whetstone.scaling.published import Published
from whetstone.scaling.replicated_engine import LOOK_SECONDS, ReplicatedEngine, Routing, Seat


class PublishingEngine(ReplicatedEngine):
    """An engine of several replicas, in the process that learns.

    Args:
        replicas: As of `ReplicatedEngine`; they were given no weights yet.
        late: Others, which may begin later.
        published: What they have by now.
        say: Told in a line where one dies, and where it is back.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        published: Published,
        *,
        late: Sequence[Replica] = (),
        abilities: EngineAbilities,
        patience_seconds: float,
        say: Say,
        routing: Routing = "prefix",
    ) -> None:
        super().__init__(
            replicas,
            late=late,
            abilities=abilities,
            patience_seconds=patience_seconds,
            version=published.version,
            routing=routing,
        )
        self._late = set(self.seats[len(replicas) :])
        self._published, self.say = published, say
        self.transfers: list[tuple[float, int]] = []
        """(seconds until all had them, bytes) of each parcel since they were last taken."""
        self._publishing = asyncio.Lock()
        self._keeping: list[asyncio.Task[None]] = []
        self._said: set[str] = set()
        for seat in self.seats:
            seat.up = False

    def start(self) -> None:
        """Begin to look after them."""
        self._keeping = [asyncio.create_task(self._keep(seat)) for seat in self.seats]

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """See `Engine.load_weights`. Returns when every replica that is up has them; the others get them when they
        are back."""
        began = time.perf_counter()
        async with self._publishing:
            parcel = await run_in_compute_thread(self._published.changed, weights, version)
            up = [seat for seat in self.seats if seat.up]
            await asyncio.gather(*(self._send(seat, parcel, in_flight) for seat in up))
            self.version = version
        self.transfers.append((time.perf_counter() - began, self._published.bytes))

    async def sleep(self) -> None:
        """See `Sleeps.sleep`."""
        await asyncio.gather(*(self._asleep(seat) for seat in self.seats if seat.up))

    async def close(self) -> None:
        """See `Engine.close`."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await super().close()

    async def _send(self, seat: Seat, parcel: Parcel, in_flight: InFlight) -> None:
        try:
            await seat.replica.load(parcel, in_flight=in_flight)
        except Gone:
            self._lose(seat)

    async def _asleep(self, seat: Seat) -> None:
        try:
            await seat.replica.sleep()
        except Gone:
            self._lose(seat)

    def _lose(self, seat: Seat) -> None:
        """It is looked after already."""
        if seat.up:
            self.say(f"{seat.replica.name} died; what was asked of it is asked of others")
        seat.up = False
        seat.sent.forget()

    async def _keep(self, seat: Seat) -> None:
        """Look at a replica now and then; give it its weights where it began again."""
        while True:
            try:
                status = await seat.replica.status()
                seat.see(status)
                if not (status.ready and seat.up):
                    await self._bring_back(seat)
            except Gone:
                self._lose(seat)
            except Exception as failure:  # it does not take them; the others go on
                if (said := f"{seat.replica.name} is not asked: {failure}") not in self._said:
                    self._said.add(said)
                    self.say(said)
            await asyncio.sleep(LOOK_SECONDS)

    async def _bring_back(self, seat: Seat) -> None:
        """All weights to one that missed some."""
        async with self._publishing:
            self._lose(seat)
            await seat.replica.load(self._published.whole(), in_flight="drain")
        seat.up = True
        if seat in self._late:
            self._late.discard(seat)
            self.say(f"{seat.replica.name} joined, at version {self.version}")
        elif seat.died:
            self.say(f"{seat.replica.name} is back, at version {self.version}")
        self._changed.set()
