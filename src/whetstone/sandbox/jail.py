"""Host side of a jail: the isolated process environment in which sessions run, one after another.

Note:
    A jail is reused only if all its processes were ended and its folders are empty, which its first process (the
    supervisor) reports. A jail without that report is discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable

from whetstone.errors import InfrastructureError
from whetstone.sandbox.cgroups import ControlGroup
from whetstone.sandbox.guest.wire import PACKET_BYTES, send_packet
from whetstone.sandbox.isolation import exceeds_limits, remove_folder
from whetstone.sandbox.limits import Limits

_START_SECONDS = 30.0
_CREDENTIALS = struct.Struct("3i")
_POLL_SECONDS, _NUM_POLLS = 0.02, 25
"""Interval in seconds and number of checks: when a server ends, all its jails end, in random order."""


class Jail:
    """An isolated process environment, initially with only its first process.

    Args:
        limits: Limits of a session in it.
        folder: Its folder on this machine if it has no separate file system; otherwise empty.
    """

    def __init__(self, limits: Limits, *, folder: str = "") -> None:
        self.limits, self.folder = limits, folder
        self.process = 0
        """Process id of its first process on this machine."""
        self.is_used = False
        """Whether a session has run in it and its first process has not yet reported that everything was removed."""
        self.num_cleanups = 0
        """Number of clean-up requests; a reply carries the number, since an earlier reply may be read by another
        session."""
        self.server_alive: Callable[[], bool] = lambda: True
        """Returns whether the server that started it is running."""
        self.group: ControlGroup | None = None
        self.control, self._guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    async def start(self, started: Callable[[socket.socket], Awaitable[None]]) -> bool:
        """Start the first process; return whether it responded.

        Args:
            started: Has the server start it, given its end of a socket.

        Raises:
            InfrastructureError: The server cannot start it.
        """
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        with self._guest_end:
            await started(self._guest_end)

        def ready() -> None:
            if not readable.done():
                readable.set_result(None)

        loop.add_reader(self.control, ready)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await readable
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self.control)
        data, ancillary, _, _ = self.control.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.process = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])[0]
        return bool(data)

    @property
    def is_alive(self) -> bool:
        """Return whether the first process is running."""
        try:
            return bool(self.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def out_of_memory(self) -> int:
        """Return the number of its processes that were killed for lack of memory so far."""
        return self.group.out_of_memory if self.group is not None else 0

    @property
    def exceeds_limits(self) -> bool:
        """Return whether its files exceed the limits.

        False if the file system enforces the limits.
        """
        return bool(self.folder) and exceeds_limits(self.folder, self.limits, self.process)

    async def has_server_ended(self) -> bool:
        """Return whether the server ended with all its jails, and not only this jail."""
        for _ in range(_NUM_POLLS):
            if not self.server_alive():
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    def request_cleanup(self) -> None:
        """Request that all processes are ended and all folders emptied.

        The next session waits for that.

        Raises:
            InfrastructureError: The jail has ended.
        """
        self.is_used = True
        self.num_cleanups += 1
        try:
            send_packet(self.control, {"do": "end", "empty": True, "number": self.num_cleanups})
        except OSError:
            raise InfrastructureError("the sandbox is gone") from None

    def kill(self) -> None:
        """Kill the first process from outside, and with it all others.

        Used if the jail does not respond.
        """
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process, signal.SIGKILL)

    def close(self) -> None:
        """Close the jail; `remove` deletes its remains when its processes have ended."""
        self._guest_end.close()
        self.control.close()  # its first process ends when the socket is closed

    def remove(self) -> bool:
        """Delete its remains on this machine; return whether nothing is left."""
        is_deleted = not self.folder or remove_folder(self.folder)
        return (self.group is None or self.group.remove()) and is_deleted
