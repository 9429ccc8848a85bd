"""Warm pool: containers that are started in advance and wait for an episode.

A container serves one session and is then removed, so that no session finds files or processes of another.

Note:
    Threads start the containers, so that a pool belongs to no event loop. A container that waited too long or whose
    first process ended is replaced when a session takes it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from whetstone.errors import InfrastructureError
from whetstone.sandbox.containers.container_runtime import ContainerPlace
from whetstone.sandbox.limits import Limits

_MAX_AGE_SECONDS = 4 * 3600.0
"""Maximum seconds that a container waits; it ends by itself after 33 hours."""
_REFILL_SECONDS = 0.05
"""Delay until a container is started in place of one that was taken, so that sessions that start at the same time have
theirs first: starting a process holds the interpreter lock."""


@dataclass(frozen=True, slots=True)
class _Started:
    """Container that waits for a session."""

    place: ContainerPlace
    time: float
    """Start, by `time.monotonic`."""
    has_visible_process: bool
    """Whether this machine shows its first process."""

    @property
    def is_usable(self) -> bool:
        """Return whether it runs and is not too old."""
        if self.has_visible_process and not os.path.exists(f"/proc/{self.place.process}"):
            return False
        return time.monotonic() - self.time < _MAX_AGE_SECONDS


class WarmPool:
    """Starts containers, some of them in advance.

    Containers with the limits of the first session are started in advance; other limits start when they are needed.

    Args:
        start: Starts a container; runs in a thread.
        discard: Removes a container without waiting for it.
        size: Maximum number of containers without a session, including those that are being started.
    """

    def __init__(self, start: Callable[[Limits], ContainerPlace], discard: Callable[[str], None], *, size: int) -> None:
        self._start, self._discard, self._size = start, discard, size
        self._max_starting = max(2, len(os.sched_getaffinity(0)))
        self._executor: ThreadPoolExecutor | None = None
        self._limits: Limits | None = None
        self._waiting: deque[Future[_Started]] = deque()
        self._lock = threading.Lock()

    def fill_pool(self, limits: Limits) -> None:
        """Start containers until `size` of them wait or are being started; does not wait for them."""
        with self._lock:
            self._limits = self._limits or limits
            while limits == self._limits and len(self._waiting) < self._size:
                self._waiting.append(self._submit(lambda: self._start(limits)))

    def _refill(self, limits: Limits) -> None:
        """Fill the pool, unless it was closed since a container was taken."""
        if self._limits == limits:
            self.fill_pool(limits)

    async def take(self, limits: Limits) -> ContainerPlace:
        """Return a container that no session had, and start another one in its place a moment later.

        Raises:
            InfrastructureError: None starts.
        """
        while True:
            with self._lock:
                future = self._waiting.popleft() if self._waiting and limits == self._limits else None
            if future is None:
                return await self.start(lambda: self._start(limits))
            asyncio.get_running_loop().call_later(_REFILL_SECONDS, self._refill, limits)
            try:
                started = await self._result(future)
            except InfrastructureError:  # an earlier failure; the runtime may work by now
                return await self.start(lambda: self._start(limits))
            if started.is_usable:
                return started.place
            self._discard(started.place.name)

    async def start(self, function: Callable[[], ContainerPlace]) -> ContainerPlace:
        """Start a container in a thread. If the caller is cancelled, the container is removed.

        Raises:
            InfrastructureError: It does not start.
        """
        with self._lock:
            future = self._submit(function)
        return (await self._result(future)).place

    def close(self) -> None:
        """Remove all containers that wait. Those that are being started are removed when they have started."""
        with self._lock:
            waiting, self._limits, executor = [*self._waiting], None, self._executor
            self._waiting.clear()
            self._executor = None
        for future in waiting:
            future.cancel()
            future.add_done_callback(self._discard_result)
        if executor is not None:
            executor.shutdown(wait=True)

    def _submit(self, function: Callable[[], ContainerPlace]) -> Future[_Started]:
        def start() -> _Started:
            if not threading.main_thread().is_alive():
                raise InfrastructureError("container: the process ends")
            place = function()
            is_visible = bool(place.process) and os.path.exists(f"/proc/{place.process}")
            return _Started(place, time.monotonic(), is_visible)

        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._max_starting, thread_name_prefix="containers")
        return self._executor.submit(start)

    async def _result(self, future: Future[_Started]) -> _Started:
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._discard_result)
            raise

    def _discard_result(self, future: Future[_Started]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._discard(future.result().place.name)
