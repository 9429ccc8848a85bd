"""Worker processes that games run in: started when needed, used again, recycled, reaped and counted.

A worker serves one game at a time. One that was cut off in the middle of a command is killed, one that died is noticed,
one that served `EPISODES_OF_A_WORKER` episodes is replaced, since packages leak.

Easy to get wrong: a worker inherits every open file unless told otherwise, and then holds a socket open that its run
believes closed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from typing import Any

import whetstone.errors
from whetstone.environments.hosting.counts import COUNTS
from whetstone.environments.hosting.worker import LENGTH, VERSION
from whetstone.environments.protocol import Game
from whetstone.errors import EpisodeError, InfrastructureError

WORKERS = max(8, 4 * (os.cpu_count() or 1))
"""At work at once; who wants another one waits, as long as the episode may take."""
EPISODES_OF_A_WORKER = 200
IDLE_SECONDS = 60.0
"""After which a worker nobody needs is ended, when the next one is asked for or let go."""
_KNOWN = {
    name: kind
    for name, kind in vars(whetstone.errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
} | {kind.__name__: kind for kind in (ValueError, OverflowError, RecursionError)}


def same_hashes() -> dict[str, str]:
    """Return the environment variables of a process in which sets of strings have the same order as in every other."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


class ProcessHost:
    """A game in a worker process. The worker is asked for with the first request, so making one costs nothing."""

    def __init__(self, make: Callable[[], Game]) -> None:
        self.make = make
        self.worker: _Worker | None = None
        self.places: asyncio.Semaphore | None = None
        """Where it gives its place back."""
        self.closed = False
        COUNTS.open_games += 1

    async def ask(self, method: str, *arguments: Any) -> Any:
        """See `Host`."""
        if self.closed:
            raise EpisodeError("a closed game was asked")
        if self.worker is None:
            places = _places_here()
            await places.acquire()
            try:
                self.worker = await _worker_for(self.make)
            except BaseException:
                places.release()
                raise
            self.places = places
        return await self._asked(self.worker, method, arguments)

    async def close(self) -> None:
        """See `Host`."""
        if self.closed:
            return
        self.closed = True
        COUNTS.open_games -= 1
        worker, self.worker = self.worker, None
        if worker is None:
            return
        worker.episodes += 1
        try:
            await self._asked(worker, "close", ())
        finally:
            self._give_back_place()
        if worker.episodes >= EPISODES_OF_A_WORKER:
            COUNTS.recycled += 1
            worker.end()
        else:
            worker.idle_since = time.monotonic()
            _idle.setdefault(worker.key, []).append(worker)
        _reap()

    async def _asked(self, worker: _Worker, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return await worker.ask(method, arguments)
        except (asyncio.CancelledError, InfrastructureError) as error:
            if isinstance(error, asyncio.CancelledError):
                COUNTS.killed += 1
            worker.end()
            self.worker = None
            self._give_back_place()
            self._gone()
            raise

    def _give_back_place(self) -> None:
        places, self.places = self.places, None
        if places is not None:
            places.release()

    def _gone(self) -> None:
        if not self.closed:
            self.closed = True
            COUNTS.open_games -= 1


class _Worker:
    """One process and the way to it."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        """The pickled factory: a worker makes games of one kind."""
        self.episodes = 0
        self.idle_since = 0.0
        ours, theirs = socket.socketpair()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        environment = {**same_hashes(), "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "whetstone.environments.hosting.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.said,
                env=environment,
                start_new_session=True,
            )
        self.connection = ours
        self.connection.setblocking(False)
        COUNTS.processes += 1
        COUNTS.started += 1

    async def ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        loop = asyncio.get_running_loop()
        body = pickle.dumps((method, arguments))
        try:
            await loop.sock_sendall(self.connection, LENGTH.pack(len(body)) + body)
            (length,) = LENGTH.unpack(await self._exactly(loop, LENGTH.size))
            answer = pickle.loads(await self._exactly(loop, length))
        except (ConnectionError, EOFError) as error:
            raise InfrastructureError(f"the worker of an environment died: {self._last_words()}") from error
        if answer[0] == "ok":
            return answer[1]
        _, name, text = answer
        kind = _KNOWN.get(name)
        raise kind(text) if kind is not None else RuntimeError(f"{name}: {text}")

    async def _exactly(self, loop: asyncio.AbstractEventLoop, count: int) -> bytes:
        held = bytearray()
        while len(held) < count:
            piece = await loop.sock_recv(self.connection, min(count - len(held), 1 << 20))
            if not piece:
                raise EOFError
            held += piece
        return bytes(held)

    def _last_words(self) -> str:
        try:
            code: object = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = "none yet"
        self.said.seek(0)
        lines = self.said.read()[-2000:].decode(errors="replace").strip().splitlines()
        return f"exit code {code}" + (f", {lines[-1]}" if lines else "")

    def end(self) -> None:
        """Kill it, and what it started."""
        if self.connection.fileno() == -1:
            return
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.said.close()
        COUNTS.processes -= 1


_idle: dict[bytes, list[_Worker]] = {}
_places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _places_here() -> asyncio.Semaphore:
    """The places for workers of this event loop."""
    return _places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(WORKERS))


async def _worker_for(make: Callable[[], Game]) -> _Worker:
    key = _key_of(make)
    _reap()
    while _idle.get(key):
        worker = _idle[key].pop()
        if worker.process.poll() is None:
            return worker
        worker.end()  # it died while nobody used it
    worker = _Worker(key)
    try:
        await worker.ask("make", (VERSION, make))
    except BaseException:
        worker.end()
        raise
    return worker


def _key_of(make: Callable[[], Game]) -> bytes:
    try:
        return pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        named = make.func if isinstance(make, functools.partial) else make
        raise InfrastructureError(f"{named} cannot be sent to a process; define it in a module: {error}") from None


def _reap() -> None:
    """End those nobody needed for a while."""
    late = time.monotonic() - IDLE_SECONDS
    for key, workers in list(_idle.items()):
        for worker in [worker for worker in workers if worker.idle_since < late]:
            workers.remove(worker)
            worker.end()
        if not workers:
            del _idle[key]


@atexit.register
def _end_all() -> None:
    for workers in _idle.values():
        for worker in workers:
            worker.end()
    _idle.clear()
