"""Pool of worker processes for games: started on demand, reused, recycled and counted.

A worker serves one game at a time. A worker whose command was canceled is killed; a dead worker is detected; a worker
that served `EPISODES_OF_A_WORKER` episodes is replaced, since packages leak memory.

Note:
    A child process inherits every open file by default, and would hold a socket open that its run has closed.
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
from whetstone.environments.hosting.hosted_worker import LENGTH, VERSION
from whetstone.environments.protocol import Game
from whetstone.errors import EpisodeError, InfrastructureError

WORKERS = max(8, 4 * (os.cpu_count() or 1))
"""Maximum number of busy workers; further games wait, within the deadline of their episode."""
EPISODES_OF_A_WORKER = 200
"""Number of episodes after which a worker process is replaced."""
IDLE_SECONDS = 60.0
"""Seconds after which an idle worker is ended; checked when another worker is requested or released."""
_KNOWN = {
    name: kind
    for name, kind in vars(whetstone.errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
} | {kind.__name__: kind for kind in (ValueError, OverflowError, RecursionError)}


def fixed_hash_variables() -> dict[str, str]:
    """Return environment variables of a child process with a fixed hash seed.

    With them, sets of strings have the same order in every process.
    """
    return {**os.environ, "PYTHONHASHSEED": "0"}


class ProcessHost:
    """Host that calls a game in a worker process.

    The worker is requested at the first call, so that creating a host is cheap.
    """

    def __init__(self, make: Callable[[], Game]) -> None:
        self.make = make
        self.worker: _Worker | None = None
        self.places: asyncio.Semaphore | None = None
        """Semaphore of worker slots that `close` releases; None without a worker."""
        self.closed = False
        COUNTS.open_games += 1

    async def call_method(self, method: str, *arguments: Any) -> Any:
        """Call a method of the game in its worker process; see `Host`.

        The first call waits for a free worker slot. If the caller is canceled during a call, the worker is killed and
        the host is closed.

        Raises:
            EpisodeError: If the host is closed.
            InfrastructureError: If the worker process died.
        """
        if self.closed:
            raise EpisodeError("the game is closed; reset its environment first")
        if self.worker is None:
            slots = _worker_slots()
            await slots.acquire()
            try:
                self.worker = await _worker_for(self.make)
            except BaseException:
                slots.release()
                raise
            self.places = slots
        return await self._ask_worker(self.worker, method, arguments)

    async def close(self) -> None:
        """Close the game and return its worker to the pool; see `Host`.

        A worker that served `EPISODES_OF_A_WORKER` episodes is ended instead.
        """
        if self.closed:
            return
        self.closed = True
        COUNTS.open_games -= 1
        worker, self.worker = self.worker, None
        if worker is None:
            return
        worker.episodes += 1
        try:
            await self._ask_worker(worker, "close", ())
        finally:
            self._release_slot()
        if worker.episodes >= EPISODES_OF_A_WORKER:
            COUNTS.recycled += 1
            worker.end()
        else:
            worker.idle_since = time.monotonic()
            _idle.setdefault(worker.key, []).append(worker)
        _reap()

    async def _ask_worker(self, worker: _Worker, method: str, arguments: tuple[Any, ...]) -> Any:
        """Send a request to the worker.

        End the worker if it died or the caller is canceled.
        """
        try:
            return await worker.ask(method, arguments)
        except (asyncio.CancelledError, InfrastructureError) as error:
            if isinstance(error, asyncio.CancelledError):
                COUNTS.killed += 1
            worker.end()
            self.worker = None
            self._release_slot()
            self._mark_closed()
            raise

    def _release_slot(self) -> None:
        slots, self.places = self.places, None
        if slots is not None:
            slots.release()

    def _mark_closed(self) -> None:
        if not self.closed:
            self.closed = True
            COUNTS.open_games -= 1


class _Worker:
    """A worker process that runs games, and the socket connection to it."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        """Pickled factory of games; a worker creates the games of one factory."""
        self.episodes = 0
        """Number of episodes that the worker has served."""
        self.idle_since = 0.0
        """Time at which the worker became idle, in seconds of the monotonic clock."""
        parent_end, child_end = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker
        environment = {
            **fixed_hash_variables(),
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "whetstone.environments.hosting.hosted_worker", str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=environment,
                start_new_session=True,
            )
        self.connection = parent_end
        self.connection.setblocking(False)
        COUNTS.processes += 1
        COUNTS.started += 1

    async def ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Send a request; return its result or raise the exception of the game.

        Raises:
            InfrastructureError: If the worker process died.
        """
        loop = asyncio.get_running_loop()
        body = pickle.dumps((method, arguments))
        try:
            await loop.sock_sendall(self.connection, LENGTH.pack(len(body)) + body)
            (length,) = LENGTH.unpack(await self._read_exactly(loop, LENGTH.size))
            answer = pickle.loads(await self._read_exactly(loop, length))
        except (ConnectionError, EOFError) as error:
            raise InfrastructureError(f"the worker process of a game died: {self._describe_exit()}") from error
        if answer[0] == "ok":
            return answer[1]
        _, name, text = answer
        kind = _KNOWN.get(name)
        raise kind(text) if kind is not None else RuntimeError(f"{name}: {text}")

    async def _read_exactly(self, loop: asyncio.AbstractEventLoop, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            piece = await loop.sock_recv(self.connection, min(count - len(received), 1 << 20))
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)

    def _describe_exit(self) -> str:
        """Return the exit code of the process and the last line of its standard error."""
        try:
            code: object = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = "none yet"
        self.errors.seek(0)
        lines = self.errors.read()[-2000:].decode(errors="replace").strip().splitlines()
        return f"exit code {code}" + (f", {lines[-1]}" if lines else "")

    def end(self) -> None:
        """Kill the worker process and its children; idempotent."""
        if self.connection.fileno() == -1:
            return
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()
        COUNTS.processes -= 1


_idle: dict[bytes, list[_Worker]] = {}
_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _worker_slots() -> asyncio.Semaphore:
    """Return the semaphore that limits the busy workers of the running event loop."""
    return _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(WORKERS))


async def _worker_for(make: Callable[[], Game]) -> _Worker:
    """Return an idle worker of a game factory, or start a new worker."""
    key = _pickle_factory(make)
    _reap()
    while _idle.get(key):
        worker = _idle[key].pop()
        if worker.process.poll() is None:
            return worker
        worker.end()  # it died while idle
    worker = _Worker(key)
    try:
        await worker.ask("make", (VERSION, make))
    except BaseException:
        worker.end()
        raise
    return worker


def _pickle_factory(make: Callable[[], Game]) -> bytes:
    """Return the pickled factory of a game.

    Raises:
        InfrastructureError: If the factory cannot be pickled, such as a lambda.
    """
    try:
        return pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        named = make.func if isinstance(make, functools.partial) else make
        raise InfrastructureError(
            f"{named} cannot be pickled for a worker process; define it in a module: {error}"
        ) from None


def _reap() -> None:
    """End workers that were idle for more than `IDLE_SECONDS`."""
    late = time.monotonic() - IDLE_SECONDS
    for key, workers in list(_idle.items()):
        for worker in [worker for worker in workers if worker.idle_since < late]:
            workers.remove(worker)
            worker.end()
        if not workers:
            del _idle[key]


@atexit.register
def _end_all() -> None:
    """End all idle worker processes; called when this process exits."""
    for workers in _idle.values():
        for worker in workers:
            worker.end()
    _idle.clear()
