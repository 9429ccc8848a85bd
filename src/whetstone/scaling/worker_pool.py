"""Which worker plays the next group? The one with the most room; one that died none, before it answers again.

Easy to get wrong: a worker that dies while nobody asks it is not missed. All of them are looked at now and then, which
is also how their load is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whetstone.errors import InfrastructureError
from whetstone.scaling.protocol import Gone, Say, Worker, WorkerStatus

LOOK_SECONDS = 0.5
"""Between two looks at a worker."""


@dataclass(slots=True, eq=False)
class _Post:
    """A worker, as the pool knows it."""

    worker: Worker
    places: int
    up: bool = True
    joined: bool = True
    """Whether it has ever been up."""
    used: int = 0
    """Places of the groups it plays, but of episodes that are over."""
    life: int = 0
    """Raised each time it died."""
    status: WorkerStatus | None = None
    died: int = 0


@dataclass(slots=True, eq=False)
class Place:
    """Room for a group in a worker."""

    post: _Post
    size: int
    """Episodes of it that may still be under way."""
    life: int

    @property
    def worker(self) -> Worker:
        """Which it is."""
        return self.post.worker


class WorkerPool:
    """All workers of a run.

    Args:
        workers: One or more, which have begun.
        late: Others, which play from when they begin.
        places: Episodes each plays at once.
        total: Episodes all of them play at once; None: as many as they have places.
        patience_seconds: For which a group waits where all are gone.
        say: Told in a line where one dies, and where it is back.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        late: Sequence[Worker] = (),
        places: int,
        total: int | None = None,
        patience_seconds: float,
        say: Say,
    ) -> None:
        self.total, self.patience_seconds, self.say = total, patience_seconds, say
        self.posts = [_Post(worker, places) for worker in workers]
        self.posts += [_Post(worker, places, up=False, joined=False) for worker in late]
        self.heard: list[Callable[[], None]] = []
        """Called when there is more room, or less."""
        self.taken_back = 0
        """Groups that went to another worker because theirs was gone."""
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look at them."""
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @property
    def has_room(self) -> bool:
        """Whether some worker would take a group."""
        return not self._full(1) and any(post.up and post.used < post.places for post in self.posts)

    @property
    def count(self) -> int:
        """Workers that are up."""
        return sum(post.up for post in self.posts)

    def _full(self, size: int) -> bool:
        """Whether so many more would be above the total; a group that is larger than that plays alone."""
        used = sum(post.used for post in self.posts)
        return self.total is not None and used > 0 and used + size > self.total

    @property
    def moved(self) -> int:
        """See `Collector.moved`."""
        return sum(status.moved for status in self.seen())

    def seen(self) -> list[WorkerStatus]:
        """How those stood that are there, when they were last looked at."""
        return [post.status for post in self.posts if post.up and post.status is not None]

    def waits(self) -> list[tuple[str, str, float]]:
        """See `Collector.waits`."""
        return [wait for status in self.seen() for wait in status.waits]

    async def place(self, size: int) -> Place:
        """Room for a group of so many episodes.

        Raises:
            InfrastructureError: All workers are gone, and none came back in time.
        """
        gone_since: float | None = None
        while True:
            up = [post for post in self.posts if post.up]
            post = min(up, key=lambda post: post.used / post.places, default=None)
            if post is not None and post.used < post.places and not self._full(size):
                post.used += size
                self._tell()
                return Place(post, size, post.life)
            gone_since = None if up else gone_since or time.perf_counter()
            left = None if gone_since is None else self.patience_seconds - (time.perf_counter() - gone_since)
            if left is not None and left <= 0:
                joined = sum(post.joined for post in self.posts)
                raise InfrastructureError(
                    f"none of {joined} environment workers came back within {self.patience_seconds:g} s "
                    "(scale.start_timeout_seconds)"
                )
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def free(self, place: Place) -> None:
        """An episode of the group is over: another's may begin. The last place stays with the group as long as it is
        played, since it may play more episodes than were said, one after the other."""
        if place.size > 1:
            place.size -= 1
            if place.life == place.post.life:
                place.post.used -= 1
            self._tell()

    def give_back(self, place: Place) -> None:
        """The group is over, or was never begun."""
        if place.life == place.post.life:
            place.post.used -= place.size
        self._tell()

    def lose(self, place: Place) -> None:
        """Its worker is gone."""
        self.taken_back += 1
        if place.life == place.post.life:
            self._down(place.post)

    def _down(self, post: _Post) -> None:
        if post.up:
            post.died += 1
            self.say(f"{post.worker.name} died; its groups are played by others, behind the turns on record")
        post.up, post.used, post.status = False, 0, None
        post.life += 1
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        for told in self.heard:
            told()

    async def _look(self) -> None:
        await asyncio.gather(*(self._look_at(post) for post in self.posts))

    async def _look_at(self, post: _Post) -> None:
        while True:
            life = post.life
            try:
                status = await post.worker.status()
            except Gone:
                if post.up and post.life == life:
                    self._down(post)
            else:
                if not post.up:
                    came = "is back" if post.joined else "joined"
                    self.say(f"{post.worker.name} {came} ({status.node[:8] or 'here'}, process {status.process})")
                    post.up = post.joined = True
                    self._tell()
                post.status = status
            await asyncio.sleep(LOOK_SECONDS)
