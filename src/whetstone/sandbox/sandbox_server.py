"""Fork server of a sandbox on the host's side: a process inside the isolation that starts sessions in milliseconds.

Note:
    The server belongs to no event loop. It is started by the first session of any loop, and started again if it ends.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import subprocess
import weakref
from collections.abc import Callable
from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox.cgroups import remove_leftovers
from whetstone.sandbox.guest.wire import frame_message, receive_frame, send_packet
from whetstone.sandbox.isolation import (
    Isolation,
    container_command,
    guest_environment,
    guest_folder,
    log_container_guarantees,
    private_folder,
    readable_paths,
    remove_folder,
    remove_leftover_folders,
    server_command,
    temporary_folder,
)

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_START_SECONDS = 60.0
_DESCRIPTORS = 1 << 16


class ForkServer:
    """Client of a sandbox's fork server, which starts the server process when a session needs it.

    `Sandbox` creates one per isolation and set of preloaded modules.

    Args:
        isolation: Isolation of the server process.
        container: Command that starts a container, with the Python inside; see `isolation.container_command`.
        preload: Modules that every interpreter has imported.
        leave: Function that receives functions to delete a folder later; each returns whether it succeeded.
    """

    def __init__(
        self,
        isolation: Isolation,
        container: tuple[str, ...],
        preload: tuple[str, ...],
        *,
        leave: Callable[[Callable[[], bool]], None],
    ) -> None:
        self.isolation, self.container, self.preload, self._leave = isolation, container, preload, leave
        self.restarts = 0
        """Number of times that the server process was started again after it had ended."""
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._retired: list[tuple[subprocess.Popen[bytes] | None, socket.socket | None]] = []
        """Server processes that start no more sessions, with their sockets."""
        self._starting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    @property
    def is_running(self) -> bool:
        """Whether the server process was started and not ended by this object."""
        return self._server is not None

    @property
    def pid(self) -> int:
        """Process id of the server on this machine; the server must be running."""
        assert self._server is not None
        return self._server.pid

    def liveness_check(self) -> Callable[[], bool]:
        """Return a function that returns whether the current server process is still running."""
        return functools.partial(_alive, self._server, self._control)

    def close(self) -> None:
        """End the server process and all retired ones."""
        self._end()
        while self._retired:
            _end_server(*self._retired.pop())

    async def open(self, wanted: dict[str, Any], guest: socket.socket) -> None:
        """Start a session in the server process, or in a new one if the server has just died.

        Args:
            wanted: Limits, user and folder of the session.
            guest: Socket that the session's supervisor receives.

        Raises:
            InfrastructureError: If neither can start the session.
        """
        for last in (False, True):
            await self._ready()
            assert self._control is not None
            try:
                send_packet(self._control, wanted, [guest.fileno()])
                break
            except OSError as error:
                if last:
                    raise InfrastructureError(f"sandbox: the fork server has ended: {error}") from None
                assert self._server is not None
                self._server.kill()
                self._server.wait()

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._starting.setdefault(loop, asyncio.Lock()):
            if self._server is not None and self._server.poll() is not None:
                self._end()
                self.restarts += 1
            if self._server is None:
                await self._start()

    async def _start(self) -> None:
        _allow_descriptors()
        remove_leftovers()
        remove_leftover_folders()
        if self.isolation is Isolation.CONTAINER:
            channel, control = await asyncio.to_thread(self._start_container)
        else:
            channel, their_channel = socket.socketpair()
            control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with their_channel, their_control:
                self._server = _started(self.isolation, their_channel.fileno(), their_control.fileno())
        self._control = control
        safe = self.isolation is not Isolation.UNSAFE
        settings = {
            "preload": self.preload,
            "namespaces": self.isolation is Isolation.NAMESPACES,
            "contained": self.isolation is Isolation.CONTAINER,
            "landlock": safe,
            "seccomp": safe,
            "temporary": temporary_folder(),
            "readable": ["/"] if self.isolation is Isolation.NAMESPACES else readable_paths(),
        }
        channel.settimeout(_START_SECONDS)
        try:
            channel.sendall(frame_message(settings))
            ready = await asyncio.get_running_loop().run_in_executor(None, receive_frame, channel)
        except (OSError, ValueError):
            ready = None
        finally:
            channel.close()
        if ready is None:
            code = self._server.poll() if self._server is not None else None
            self._end()
            raise InfrastructureError(
                f"sandbox: the fork server did not start (exit code {code}); check it with `whetstone doctor`"
            )
        if self.isolation is Isolation.CONTAINER and not (ready["seccomp"] and ready["landlock"]):
            log_container_guarantees(seccomp=ready["seccomp"], landlock=ready["landlock"])

    def _start_container(self) -> tuple[socket.socket, socket.socket]:
        """Start a container and return the sockets of settings and control once the server inside has connected.

        Raises:
            InfrastructureError: If the server does not connect within 60 seconds.
        """
        folder, guest = private_folder(), guest_folder()
        for place in (folder, guest):
            self._leave(functools.partial(remove_folder, place))
        os.chmod(folder, 0o711)
        met = []
        with socket.socket(socket.AF_UNIX) as channel, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            for listening, name in ((channel, "channel"), (control, "control")):
                listening.bind(f"{folder}/{name}")
                os.chmod(f"{folder}/{name}", 0o777)  # the runtime decides which user the server is
                listening.listen(1)
                listening.settimeout(_START_SECONDS)
            words = container_command(self.container, guest, folder)
            self._server = subprocess.Popen(words, stdin=subprocess.DEVNULL)
            try:
                for listening in (channel, control):
                    met.append(listening.accept()[0])
            except TimeoutError:
                raise InfrastructureError(
                    f"sandbox: the fork server in the container did not connect within {_START_SECONDS:g} s; check the "
                    f"command: {' '.join(words[:4])} …"
                ) from None
        return met[0], met[1]

    def retire_server(self) -> None:
        """Start a new server process for the next sessions.

        The current one stays for its running sessions.
        """
        self._retired.append((self._server, self._control))
        self._server = self._control = None
        self.restarts += 1

    def _end(self) -> None:
        server, control = self._server, self._control
        self._server = self._control = None
        _end_server(server, control)


def _end_server(server: subprocess.Popen[bytes] | None, control: socket.socket | None) -> None:
    if control is not None:
        control.close()  # ends the server
    if server is not None:
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _alive(server: subprocess.Popen[bytes] | None, control: socket.socket | None) -> bool:
    """Return whether a server process runs: by its exit status, and by its socket, which closes before it ends."""
    if server is None or control is None or server.poll() is not None:
        return False
    try:
        return bool(control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _allow_descriptors() -> None:
    """Raise the limit of open files: a session has three, and the default limit is often 1024."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _started(isolation: Isolation, *sockets: int) -> subprocess.Popen[bytes]:
    arguments = server_command(isolation, *sockets)
    return subprocess.Popen(arguments, pass_fds=sockets, env=guest_environment(), stdin=subprocess.DEVNULL, cwd="/")
