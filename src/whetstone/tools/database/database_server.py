"""Fork servers of database processes on the host's side, one per library, started at the first request.

A server is not bound to an event loop or a thread, only to one process: a fork of this process starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox.guest.wire import LENGTH, frame_message, send_packet
from whetstone.tools.database.guest.worker import MOST_FRAME_BYTES

_SOURCE = Path(__file__).parents[3]
_START = """
import sys, types
for name in ("whetstone", "whetstone.sandbox", "whetstone.tools", "whetstone.tools.database"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [f"{sys.argv[2]}/{name.replace('.', '/')}"]
sys.argv[1:] = [sys.argv[1], sys.argv[3]]
from whetstone.tools.database.guest.server import run_database_server
run_database_server()
"""
"""Program of the fork server.

Packages are replaced by empty modules, because importing them would take longer than everything else.
"""
_MOST_SECONDS_TO_SEND = 10.0
_MOST_SECONDS_TO_END = 5.0


class ResultTooLargeError(Exception):
    """Response of a database process that exceeds the maximum size."""


class DatabaseWorker:
    """Client of one database process.

    `DatabaseServer.start` creates it. The responses are untrusted, like the queries.

    Args:
        server: Fork server of the process.
        number: Number of the process at the server.
        channel: Socket to the process.
    """

    def __init__(self, server: DatabaseServer, number: int, channel: socket.socket) -> None:
        self._server, self._number, self._channel = server, number, channel
        self._channel.setblocking(False)
        self._killed = False

    @property
    def is_alive(self) -> bool:
        """Whether the process is running and was not killed."""
        if self._killed:
            return False
        try:
            return bool(self._channel.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def send_request(self, message: dict[str, Any], *, most_bytes: int) -> list[dict[str, Any]]:
        """Send a request and return all frames of the response, the status last.

        Kill the process on errors.

        Args:
            message: Request as a JSON object.
            most_bytes: Maximum total size of the response.

        Raises:
            EOFError: If the process ended, or sent an invalid frame.
            ResultTooLargeError: If the response is larger than `most_bytes`.
        """
        try:
            return await self._request(message, most_bytes)
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError | ValueError | RecursionError):
                raise EOFError(str(error)) from None
            raise

    def kill(self) -> None:
        """Kill the process immediately; a second call has no effect."""
        if not self._killed:
            self._killed = True
            self._server.kill_process(self._number)

    async def wait_until_ended(self) -> None:
        """Kill the process and wait up to five seconds until it has ended.

        No request may be in flight.
        """
        self.kill()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(_MOST_SECONDS_TO_END):
                while await loop.sock_recv(self._channel, 1 << 20):
                    pass
        self._channel.close()

    async def _request(self, message: dict[str, Any], most_bytes: int) -> list[dict[str, Any]]:
        await asyncio.get_running_loop().sock_sendall(self._channel, frame_message(message))
        frames: list[dict[str, Any]] = []
        while not frames or "end" not in frames[-1]:
            (size,) = LENGTH.unpack(await self._exactly(LENGTH.size))
            most_bytes -= size
            if size > MOST_FRAME_BYTES or most_bytes < 0:
                raise ResultTooLargeError
            one = json.loads(await self._exactly(size))
            if not isinstance(one, dict):
                raise ValueError("no message")
            frames.append(one)
        return frames

    async def _exactly(self, size: int) -> bytes:
        loop, pieces = asyncio.get_running_loop(), []
        while size:
            piece = await loop.sock_recv(self._channel, min(size, 1 << 20))
            if not piece:
                raise EOFError("it has ended")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class DatabaseServer:
    """Fork server that starts and kills database processes.

    The server process starts at the first request.

    Args:
        library: Python module that reads the databases, `sqlite3` or `duckdb`.
    """

    def __init__(self, library: str) -> None:
        self._library, self._lock, self._numbers = library, threading.Lock(), itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0
        atexit.register(self.close)

    def start(self) -> DatabaseWorker:
        """Start an idle database process and return its client.

        Raises:
            InfrastructureError: If no process can be started.
        """
        try:
            channel, child_end = socket.socketpair()
        except OSError as error:
            raise InfrastructureError(f"sql: no database process can be started: {error}") from None
        number = next(self._numbers)
        with child_end, self._lock:
            for last in (False, True):
                try:
                    send_packet(self._ready(), {"do": "start", "number": number}, [child_end.fileno()])
                    return DatabaseWorker(self, number, channel)
                except OSError as error:
                    self._close()
                    if last:
                        channel.close()
                        raise InfrastructureError(f"sql: no database process can be started: {error}") from None
        raise AssertionError("unreachable")

    def kill_process(self, number: int) -> None:
        """Kill the database process with this number."""
        with self._lock, contextlib.suppress(OSError):  # when the server is gone, its processes are, too
            if self._control is not None and self._owner == os.getpid():
                send_packet(self._control, {"do": "end", "number": number})

    def close(self) -> None:
        """End the fork server; all its database processes end with it."""
        with self._lock:
            self._close()

    def _ready(self) -> socket.socket:
        if self._control is not None and self._owner == os.getpid():
            return self._control
        channel, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(_MOST_SECONDS_TO_SEND)
        words = [sys.executable, "-I", "-c", _START, str(child_end.fileno()), str(_SOURCE), self._library]
        environment = {name: os.environ[name] for name in ("TZ", "PATH") if name in os.environ} | {"LANG": "C.UTF-8"}
        with child_end:
            self._process = subprocess.Popen(
                words,
                pass_fds=[child_end.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._control, self._owner = channel, os.getpid()
        return channel

    def _close(self) -> None:
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()  # it takes that as its end
        if process is not None and self._owner == os.getpid():
            try:
                process.wait(timeout=_MOST_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@functools.cache
def get_fork_server(kind: str) -> DatabaseServer:
    """Return the fork server of this process for `sqlite` or `duckdb` databases."""
    return DatabaseServer({"sqlite": "sqlite3", "duckdb": "duckdb"}[kind])
