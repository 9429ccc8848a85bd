"""Pool of environment workers: assigns groups to the worker with the most free slots, and detects failures.

Note:
    A worker that dies without a pending call goes unnoticed. All workers are polled at intervals, which also yields
    their load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whetstone.errors import InfrastructureError
from whetstone.scaling.protocol import ActorUnavailable, Notify, Worker, WorkerStatus

LOOK_SECONDS = 0.5
"""Interval between two status requests to a worker."""


@dataclass(slots=True, eq=False)
class _WorkerHandle:
    """State of a worker in the pool."""

    worker: Worker
    places: int
    up: bool = True
    joined: bool = True
    """Whether the worker was ever up."""
    used: int = 0
    """Number of slots reserved for groups, except those of finished episodes."""
    life: int = 0
    """Number of times that the worker has died, by which outdated reservations are recognized."""
    status: WorkerStatus | None = None
    died: int = 0


@dataclass(slots=True, eq=False)
class SlotReservation:
    """Reserved slots of a worker for one group."""

    post: _WorkerHandle
    size: int
    """Number of episodes of the group that may still run."""
    life: int
    """Count of the worker's deaths when the slots were reserved; a later death voids the reservation."""

    @property
    def worker(self) -> Worker:
        """Worker that plays the group."""
        return self.post.worker


class WorkerPool:
    """Pool of all environment workers of a run: polls them, and reserves their slots for groups.

    Args:
        workers: One or more started workers.
        late: Workers that may start later.
        places: Maximum number of concurrent episodes of each worker.
        total: Maximum number of concurrent episodes of all workers; None: the sum of their slots.
        patience_seconds: Maximum number of seconds that a group waits if all workers are gone.
        notify: Receives a line when a worker dies, joins or returns.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        late: Sequence[Worker] = (),
        places: int,
        total: int | None = None,
        patience_seconds: float,
        notify: Notify,
    ) -> None:
        self.total, self.patience_seconds, self.notify = total, patience_seconds, notify
        self.posts = [_WorkerHandle(worker, places) for worker in workers]
        self.posts += [_WorkerHandle(worker, places, up=False, joined=False) for worker in late]
        self.listeners: list[Callable[[], None]] = []
        """Callbacks for more or less room."""
        self.num_reassigned = 0
        """Number of groups that moved to another worker because theirs was gone."""
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to poll the workers for their status."""
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Stop polling the workers."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @property
    def has_room(self) -> bool:
        """Whether a worker would accept a group of one episode now."""
        return not self._full(1) and any(post.up and post.used < post.places for post in self.posts)

    @property
    def count(self) -> int:
        """Number of workers that are up."""
        return sum(post.up for post in self.posts)

    def _full(self, size: int) -> bool:
        """Return whether `size` more episodes would exceed the total.

        A group that is larger than the total is played when no other group is.
        """
        used = sum(post.used for post in self.posts)
        return self.total is not None and used > 0 and used + size > self.total

    @property
    def moved(self) -> int:
        """Sum of the workers' progress counters; see `Collector.moved`."""
        return sum(status.moved for status in self.last_statuses())

    def last_statuses(self) -> list[WorkerStatus]:
        """Return the last status of each worker that is up."""
        return [post.status for post in self.posts if post.up and post.status is not None]

    def waits(self) -> list[tuple[str, str, float]]:
        """Return the longest waits of all workers; see `Collector.waits`."""
        return [wait for status in self.last_statuses() for wait in status.waits]

    async def reserve_slots(self, size: int) -> SlotReservation:
        """Reserve slots for a group of `size` episodes on the least loaded worker; waits until one has room.

        Raises:
            InfrastructureError: All workers are gone, and none returned in time.
        """
        unavailable_since: float | None = None
        while True:
            up = [post for post in self.posts if post.up]
            post = min(up, key=lambda post: post.used / post.places, default=None)
            if post is not None and post.used < post.places and not self._full(size):
                post.used += size
                self._tell()
                return SlotReservation(post, size, post.life)
            unavailable_since = None if up else unavailable_since or time.perf_counter()
            left = (
                None if unavailable_since is None else self.patience_seconds - (time.perf_counter() - unavailable_since)
            )
            if left is not None and left <= 0:
                joined = sum(post.joined for post in self.posts)
                raise InfrastructureError(
                    f"none of {joined} environment workers returned within {self.patience_seconds:g} s "
                    "(scale.start_timeout_seconds)"
                )
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def free_slot(self, place: SlotReservation) -> None:
        """Free one slot of a group whose episode has finished.

        The last slot stays reserved until the group ends, because a group may play more episodes than announced, one
        after the other.
        """
        if place.size > 1:
            place.size -= 1
            if place.life == place.post.life:
                place.post.used -= 1
            self._tell()

    def release(self, place: SlotReservation) -> None:
        """Free all slots of a group that has ended or did not start."""
        if place.life == place.post.life:
            place.post.used -= place.size
        self._tell()

    def report_lost(self, place: SlotReservation) -> None:
        """Mark the worker of a group as gone, because a call to it failed."""
        self.num_reassigned += 1
        if place.life == place.post.life:
            self._down(place.post)

    def _down(self, post: _WorkerHandle) -> None:
        if post.up:
            post.died += 1
            self.notify(f"{post.worker.name} died; other workers continue its groups after the recorded turns")
        post.up, post.used, post.status = False, 0, None
        post.life += 1
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        for listener in self.listeners:
            listener()

    async def _look(self) -> None:
        await asyncio.gather(*(self._look_at(post) for post in self.posts))

    async def _look_at(self, post: _WorkerHandle) -> None:
        while True:
            life = post.life
            try:
                status = await post.worker.status()
            except ActorUnavailable:
                if post.up and post.life == life:
                    self._down(post)
            else:
                if not post.up:
                    came = "is back" if post.joined else "joined"
                    self.notify(f"{post.worker.name} {came} ({status.node[:8] or 'here'}, process {status.process})")
                    post.up = post.joined = True
                    self._tell()
                post.status = status
            await asyncio.sleep(LOOK_SECONDS)
