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
"""Number of checks whether the server has ended, every 0.02 seconds: its jails may end before the server does."""


class Jail:
    """Isolated process environment on the host's side, in which sessions run one after another.

    `Sandbox` starts it and keeps it for reuse. At the start it contains only its first process, the supervisor.

    Args:
        limits: Limits of a session in the jail.
        folder: Folder of the jail on this machine if it has no separate file system; otherwise empty.
    """

    def __init__(self, limits: Limits, *, folder: str = "") -> None:
        self.limits, self.folder = limits, folder
        self.process = 0
        """Process id of the supervisor on this machine; 0 before the start."""
        self.is_used = False
        """Whether a session has run in the jail and its supervisor has not yet reported that everything was removed."""
        self.num_cleanups = 0
        """Number of clean-up requests so far; a reply carries it, because another session may read an earlier reply."""
        self.server_alive: Callable[[], bool] = lambda: True
        """Function that returns whether the fork server of the jail is running."""
        self.group: ControlGroup | None = None
        self.control, self._guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    async def start(self, started: Callable[[socket.socket], Awaitable[None]]) -> bool:
        """Start the supervisor of the jail; return whether it responded within 30 seconds.

        Args:
            started: Async function that makes the fork server start the supervisor with this end of a socket.

        Raises:
            InfrastructureError: If the server cannot start it.
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
        """Whether the supervisor of the jail is running."""
        try:
            return bool(self.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def out_of_memory(self) -> int:
        """Number of the jail's processes that the kernel killed for lack of memory so far.

        0 without a control group.
        """
        return self.group.out_of_memory if self.group is not None else 0

    @property
    def exceeds_limits(self) -> bool:
        """Whether the files of the jail exceed the limits.

        Always False if a file system enforces them.
        """
        return bool(self.folder) and exceeds_limits(self.folder, self.limits, self.process)

    async def has_server_ended(self) -> bool:
        """Return whether the fork server ended with all its jails, and not only this jail.

        Waits up to half a second.
        """
        for _ in range(_NUM_POLLS):
            if not self.server_alive():
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    def request_cleanup(self) -> None:
        """Request that the supervisor ends all processes and empties all folders.

        The next session waits for the report.

        Raises:
            InfrastructureError: If the jail has ended.
        """
        self.is_used = True
        self.num_cleanups += 1
        try:
            send_packet(self.control, {"do": "end", "empty": True, "number": self.num_cleanups})
        except OSError:
            raise InfrastructureError("sandbox: the session's first process has ended") from None

    def kill(self) -> None:
        """Kill the supervisor from outside, and with it all processes.

        Used if the jail does not respond.
        """
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection to the jail, which ends it.

        `remove` deletes its remains when its processes have ended.
        """
        self._guest_end.close()
        self.control.close()  # its first process ends when the socket is closed

    def remove(self) -> bool:
        """Delete the folder and the control group of an ended jail.

        Return whether nothing is left.
        """
        is_deleted = not self.folder or remove_folder(self.folder)
        return (self.group is None or self.group.remove()) and is_deleted
