"""The world a session lives in, as the host holds it: made by the server, lived in by one session after another.

Easy to get wrong: one is used again only when everything in it was ended and its folders are empty, which its first
process says; what cannot say so is thrown away.
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
from whetstone.sandbox.isolation import remove_folder, too_full
from whetstone.sandbox.limits import Limits

_START_SECONDS = 30.0
_CREDENTIALS = struct.Struct("3i")
_LOOK_SECONDS, _LOOKS = 0.02, 25
"""When a server ends all its worlds do, and which of them is noticed first is chance."""


class Jail:
    """A world with nobody in it but its first process.

    Args:
        limits: What a session in it may use.
        folder: Its folder on this machine, where it has no file system of its own; empty where it has.
    """

    def __init__(self, limits: Limits, *, folder: str = "") -> None:
        self.limits, self.folder = limits, folder
        self.process = 0
        """The number of its first process among the machine's."""
        self.used = False
        """Whether somebody has lived in it, and its first process has still to say that nothing is left of that."""
        self.asked = 0
        """How often that was asked; an answer names the question, since one before may have been heard by somebody."""
        self.server_alive: Callable[[], bool] = lambda: True
        """Whether the server that started it is there."""
        self.group: ControlGroup | None = None
        self.control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    async def begin(self, started: Callable[[socket.socket], Awaitable[None]]) -> bool:
        """Whether its first process is there.

        Args:
            started: Has the server start it, given its end of a socket.

        Raises:
            InfrastructureError: The server cannot.
        """
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        with self._theirs:
            await started(self._theirs)

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
    def alive(self) -> bool:
        """Whether its first process is still there."""
        try:
            return bool(self.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def out_of_memory(self) -> int:
        """How many of its processes were ended for want of memory so far."""
        return self.group.out_of_memory if self.group is not None else 0

    @property
    def too_full(self) -> bool:
        """Whether there are too many files, or too large ones, where nothing but looking at them tells."""
        return bool(self.folder) and too_full(self.folder, self.limits, self.process)

    async def server_is_gone(self) -> bool:
        """Whether it was not the world alone that ended, but the server with all its worlds."""
        for _ in range(_LOOKS):
            if not self.server_alive():
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    def clear(self) -> None:
        """Have everything in it ended and emptied; whoever takes it next waits for that.

        Raises:
            InfrastructureError: It is gone.
        """
        self.used = True
        self.asked += 1
        try:
            send_packet(self.control, {"do": "end", "empty": True, "number": self.asked})
        except OSError:
            raise InfrastructureError("the sandbox is gone") from None

    def kill(self) -> None:
        """End its first process from outside, and with it all others; for one that does not answer."""
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process, signal.SIGKILL)

    def end(self) -> None:
        """Tear it down; what is left of it is `remove`d when its processes have ended."""
        self._theirs.close()
        self.control.close()  # its first process takes that as its end

    def remove(self) -> bool:
        """Whether nothing of it is left on this machine."""
        gone = not self.folder or remove_folder(self.folder)
        return (self.group is None or self.group.remove()) and gone
