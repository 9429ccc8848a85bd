"""Weight sync from the learner to engine replicas, including replicas that restarted.

    load_weights → changes, put once → every replica that is up, in parallel → acknowledged → the version
    a replica that restarted → all changes since it was created → ready → it receives requests again

Note:
    An update of changes applies to one version. A replica at another version reports this and counts as gone. It
    receives all weights before any request, so no replica samples with a mix of two versions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from whetstone.compute_thread import run_in_compute_thread
from whetstone.inference.protocol import EngineCapabilities, InFlight, Weights
from whetstone.scaling.protocol import ActorUnavailable, Notify, Replica, WeightUpdate
from whetstone.scaling.replicated_engine import LOOK_SECONDS, ReplicaHandle, ReplicatedEngine, Routing
from whetstone.scaling.weight_broadcast import SharedWeights


class WeightSyncEngine(ReplicatedEngine):
    """Engine of several replicas in the learner's process: sends new weights, and restores replicas that restarted.

    Args:
        replicas: Started replicas, which have received no weights yet.
        published: Weights that the replicas receive.
        late: Replicas that may start later.
        capabilities: Capabilities of all replicas.
        patience_seconds: Maximum number of seconds that a request waits if all replicas are gone.
        notify: Receives a line when a replica dies, joins or returns.
        routing: Criterion for choosing a replica.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        published: SharedWeights,
        *,
        late: Sequence[Replica] = (),
        capabilities: EngineCapabilities,
        patience_seconds: float,
        notify: Notify,
        routing: Routing = "prefix",
    ) -> None:
        super().__init__(
            replicas,
            late=late,
            capabilities=capabilities,
            patience_seconds=patience_seconds,
            version=published.version,
            routing=routing,
        )
        self._late = set(self.handles[len(replicas) :])
        self._published, self.notify = published, notify
        self.transfers: list[tuple[float, int]] = []
        """(seconds until all replicas had it, bytes) of each update since the last read."""
        self._publishing = asyncio.Lock()
        self._keeping: list[asyncio.Task[None]] = []
        self._notices: set[str] = set()
        for handle in self.handles:
            handle.up = False

    def start(self) -> None:
        """Start to monitor the replicas and to send them their weights."""
        self._keeping = [asyncio.create_task(self._keep(handle)) for handle in self.handles]

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Send the changed weights to all replicas; see `Engine.load_weights`.

        Returns when every replica that is up has the weights; others receive them when they return.
        """
        began = time.perf_counter()
        async with self._publishing:
            update = await run_in_compute_thread(self._published.collect_changes, weights, version)
            up = [handle for handle in self.handles if handle.up]
            await asyncio.gather(*(self._send(handle, update, in_flight) for handle in up))
            self.version = version
        self.transfers.append((time.perf_counter() - began, self._published.bytes))

    async def sleep(self) -> None:
        """Have all replicas release their memory until the next weights; see `SupportsSleep.sleep`."""
        await asyncio.gather(*(self._asleep(handle) for handle in self.handles if handle.up))

    async def close(self) -> None:
        """Stop monitoring the replicas and sending requests."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await super().close()

    async def _send(self, handle: ReplicaHandle, update: WeightUpdate, in_flight: InFlight) -> None:
        try:
            await handle.replica.load(update, in_flight=in_flight)
        except ActorUnavailable:
            self._lose(handle)

    async def _asleep(self, handle: ReplicaHandle) -> None:
        try:
            await handle.replica.sleep()
        except ActorUnavailable:
            self._lose(handle)

    def _lose(self, handle: ReplicaHandle) -> None:
        """Mark a replica as gone; the monitoring of `start` restores it."""
        if handle.up:
            self.notify(f"{handle.replica.name} died; its requests are sent to other replicas")
        handle.up = False
        handle.sent.forget()

    async def _keep(self, handle: ReplicaHandle) -> None:
        """Poll a replica at intervals, and send it all weights after a restart."""
        while True:
            try:
                status = await handle.replica.status()
                handle.update_status(status)
                if not (status.ready and handle.up):
                    await self._bring_back(handle)
            except ActorUnavailable:
                self._lose(handle)
            except Exception as failure:  # it does not accept them; other replicas continue
                if (line := f"{handle.replica.name} receives no requests: {failure}") not in self._notices:
                    self._notices.add(line)
                    self.notify(line)
            await asyncio.sleep(LOOK_SECONDS)

    async def _bring_back(self, handle: ReplicaHandle) -> None:
        """Send all weights to a replica that missed some of them, then let it receive requests."""
        async with self._publishing:
            self._lose(handle)
            await handle.replica.load(self._published.collect_all(), in_flight="drain")
        handle.up = True
        if handle in self._late:
            self._late.discard(handle)
            self.notify(f"{handle.replica.name} joined, at version {self.version}")
        elif handle.died:
            self.notify(f"{handle.replica.name} is back, at version {self.version}")
        self._changed.set()
