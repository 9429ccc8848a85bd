"""Where sessions come from: a fork server behind the strongest isolation there is, started once and used by all.

Easy to get wrong: two event loops. The server belongs to none; a session belongs to the one it was opened in.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import resource
import secrets
import socket
import subprocess
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox.cgroups import ControlGroup, parents, remove_leftovers
from whetstone.sandbox.guest.wire import frame, receive_frame, send_packet
from whetstone.sandbox.isolation import (
    WORK,
    Isolation,
    choose,
    command,
    container_command,
    counted_together,
    environment,
    guest_folder,
    own_users,
    private_folder,
    readable,
    remove_folder,
    remove_leftover_folders,
    say_what_a_container_lacks,
    temporary,
)
from whetstone.sandbox.jail import Jail
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.session import Session

PRELOAD = (
    "ast", "bisect", "collections", "copy", "csv", "datetime", "decimal", "fractions", "functools", "heapq", "io",
    "itertools", "json", "math", "random", "re", "statistics", "string", "subprocess", "textwrap", "typing", "numpy",
    "numpy.random",
)  # fmt: skip
_FIRST_USER, _USERS = 40000, 20000
_START_SECONDS, _AGAIN_SECONDS = 60.0, 0.2
_DESCRIPTORS = 1 << 16
_MOST_IDLE = 256
"""Worlds kept for sessions to come; each holds about 2.5 MiB. A step of training ends as many episodes at once."""
_numbers = itertools.count()


class Sandbox:
    """Sessions for foreign code.

    Args:
        isolation: `auto` for the strongest this machine offers, or the name of one; `unsafe` has to be written out.
        limits: What each session may use.
        preload: Modules every interpreter has imported already; those that are missing are passed over.
        max_running: Calls running at once, of all sessions; others wait, outside of their time. None: sixteen a core,
            so that those that only wait leave room, and those that compute get their share in time.
        container: What starts a container, up to and with the Python inside; see `isolation.container_command`.

    Raises:
        SandboxError: The isolation cannot be had here.
    """

    def __init__(
        self,
        *,
        isolation: str = "auto",
        limits: Limits | None = None,
        preload: Sequence[str] = PRELOAD,
        max_running: int | None = None,
        container: Sequence[str] = (),
    ) -> None:
        self.isolation, self.container = choose(isolation, container), tuple(container)
        self.limits, self.preload = limits or Limits(), tuple(preload)
        self.max_running = max_running or 16 * len(os.sched_getaffinity(0))
        self.sessions: set[Session] = set()
        """Those that are open."""
        self.restarts = 0
        """How often the server was started again after it had ended."""
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._retired: list[tuple[subprocess.Popen[bytes] | None, socket.socket | None]] = []
        """Servers that could start no more sessions, and the way to end them."""
        self._starting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._places = weakref.WeakKeyDictionary()
        self._leftovers: list[Callable[[], bool]] = []
        # where processes are counted for the whole user, a limit that was right for one session is wrong for the next
        self._keeps = self.isolation in (Isolation.NAMESPACES, Isolation.CONTAINER) or os.getuid() == 0
        self._idle: defaultdict[Limits, list[Jail]] = defaultdict(list)
        """Worlds somebody has left, for the next that may use as much."""
        self._users = _users() if own_users(self.isolation) else None

    def session(self, *, persistent: bool = True, seed: int = 0, limits: Limits | None = None) -> Session:
        """A new session for the running event loop; its first call starts it, and the server where it is not there."""
        session = Session(
            self._taken,
            self._given_back,
            limits=limits or self.limits,
            persistent=persistent,
            seed=seed,
            place=self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.max_running)),
            watched=self.isolation in (Isolation.LANDLOCK, Isolation.UNSAFE),
        )
        self.sessions.add(session)
        return session

    def close(self) -> None:
        """End all sessions and the server."""
        for session in list(self.sessions):
            session.close()
        for jail in [jail for jails in self._idle.values() for jail in jails]:
            self._thrown_away(jail)
        self._idle.clear()
        self._end_server()
        while self._retired:
            _end(*self._retired.pop())
        for _ in range(200):
            if not self._clear():
                return
            time.sleep(0.01)  # processes take a moment to end

    async def _taken(self, limits: Limits) -> Jail:
        """A world with nobody in it: one that somebody has left, or a new one.

        Raises:
            InfrastructureError: There is none to be had.
        """
        idle = self._idle[limits]
        while idle:
            jail = idle.pop()
            if jail.alive:
                return jail
            self._thrown_away(jail)
        for failed in (1, 2, 3):  # a server that has just died may still have taken what was sent to it
            jail = Jail(limits, folder=self._folder())
            try:
                if await jail.begin(functools.partial(self._begun, jail)):
                    if self.isolation in (Isolation.NAMESPACES, Isolation.LANDLOCK) and parents():
                        jail.group = ControlGroup(
                            next(_numbers), memory=limits.together, processes=limits.bounds.processes
                        )
                        jail.group.admit(jail.process)  # it has started nothing yet
                    return jail
            except OSError as error:
                self._thrown_away(jail)
                raise InfrastructureError(f"the sandbox could not start a session: {error}") from None
            except BaseException:
                self._thrown_away(jail)
                raise
            self._thrown_away(jail)
            await asyncio.sleep(_AGAIN_SECONDS)
            if failed == 2:
                self._retire()
        raise InfrastructureError("the sandbox could not start a session")

    def _folder(self) -> str:
        watched = self.isolation in (Isolation.LANDLOCK, Isolation.UNSAFE)
        return private_folder() if watched else ""

    async def _begun(self, jail: Jail, theirs: socket.socket) -> None:
        """Have the server start a world.

        Raises:
            InfrastructureError: It cannot.
        """
        user = next(self._users) if self._users is not None else None
        if jail.folder and user is not None:
            os.chown(jail.folder, user, user)
        others = counted_together(self.isolation)  # and those that are just being started
        most = jail.limits.bounds.processes + (others and others + 3 * len(self.sessions))
        bounds = asdict(jail.limits.bounds) | {"processes": most}
        folder = WORK if self.isolation is Isolation.NAMESPACES else jail.folder  # in a container it finds one inside
        await self._open({"bounds": bounds, "user": user, "folder": folder}, theirs)
        jail.server_alive = functools.partial(_alive, self._server, self._control)

    def _given_back(self, session: Session, jail: Jail, clean: bool) -> None:
        """Keep a world for the next session, if it may be."""
        self.sessions.discard(session)
        if clean and self._keeps and self._server is not None and sum(map(len, self._idle.values())) < _MOST_IDLE:
            try:
                jail.clear()
                self._idle[jail.limits].append(jail)
                return
            except InfrastructureError:
                pass
        self._thrown_away(jail)
        self._clear()

    def _thrown_away(self, jail: Jail) -> None:
        jail.end()
        self._leftovers.append(jail.remove)

    def _clear(self) -> int:
        """Remove what worlds have left; how much could not be yet."""
        self._leftovers = [remove for remove in self._leftovers if not remove()]
        return len(self._leftovers)

    async def _open(self, wanted: dict[str, Any], theirs: socket.socket) -> None:
        """Have the server start a session; where it has just died, another one.

        Raises:
            InfrastructureError: Neither does.
        """
        for last in (False, True):
            await self._ready()
            assert self._control is not None
            try:
                send_packet(self._control, wanted, [theirs.fileno()])
                break
            except OSError as error:
                if last:
                    raise InfrastructureError(f"the sandbox's server is gone: {error}") from None
                assert self._server is not None
                self._server.kill()
                self._server.wait()

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._starting.setdefault(loop, asyncio.Lock()):
            if self._server is not None and self._server.poll() is not None:
                self._end_server()
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
            channel, theirs = socket.socketpair()
            control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, their_control:
                self._server = _started(self.isolation, theirs.fileno(), their_control.fileno())
        self._control = control
        safe = self.isolation is not Isolation.UNSAFE
        settings = {
            "preload": self.preload,
            "namespaces": self.isolation is Isolation.NAMESPACES,
            "contained": self.isolation is Isolation.CONTAINER,
            "landlock": safe,
            "seccomp": safe,
            "temporary": temporary(),
            "readable": ["/"] if self.isolation is Isolation.NAMESPACES else readable(),
        }
        channel.settimeout(_START_SECONDS)
        try:
            channel.sendall(frame(settings))
            ready = await asyncio.get_running_loop().run_in_executor(None, receive_frame, channel)
        except (OSError, ValueError):
            ready = None
        finally:
            channel.close()
        if ready is None:
            code = self._server.poll() if self._server is not None else None
            self._end_server()
            raise InfrastructureError(f"the sandbox's server does not start (exit code {code})")
        if self.isolation is Isolation.CONTAINER and not (ready["seccomp"] and ready["landlock"]):
            say_what_a_container_lacks(seccomp=ready["seccomp"], landlock=ready["landlock"])

    def _start_container(self) -> tuple[socket.socket, socket.socket]:
        """Both sockets, when the server inside has connected.

        Raises:
            InfrastructureError: It does not.
        """
        folder, guest = private_folder(), guest_folder()
        self._leftovers += [functools.partial(remove_folder, place) for place in (folder, guest)]
        os.chmod(folder, 0o711)
        met = []
        with socket.socket(socket.AF_UNIX) as channel, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            for listening, name in ((channel, "channel"), (control, "control")):
                listening.bind(f"{folder}/{name}")
                os.chmod(f"{folder}/{name}", 0o777)  # who the server is inside is the runtime's business
                listening.listen(1)
                listening.settimeout(_START_SECONDS)
            words = container_command(self.container, guest, folder)
            self._server = subprocess.Popen(words, stdin=subprocess.DEVNULL)
            try:
                for listening in (channel, control):
                    met.append(listening.accept()[0])
            except TimeoutError:
                raise InfrastructureError(f"no server has come up in the container: {' '.join(words[:4])} …") from None
        return met[0], met[1]

    def _retire(self) -> None:
        """Have another server start sessions from now on; this one stays for those it has."""
        self._retired.append((self._server, self._control))
        self._server = self._control = None
        self.restarts += 1

    def _end_server(self) -> None:
        server, control = self._server, self._control
        self._server = self._control = None
        _end(server, control)


def _end(server: subprocess.Popen[bytes] | None, control: socket.socket | None) -> None:
    if control is not None:
        control.close()  # the server takes that as its end
    if server is not None:
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _alive(server: subprocess.Popen[bytes] | None, control: socket.socket | None) -> bool:
    """Whether a server is there: its process, and its end of the socket, which goes before the process does."""
    if server is None or control is None or server.poll() is not None:
        return False
    try:
        return bool(control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _allow_descriptors() -> None:
    """As many open files as the system lets us have: a session holds three, and at first there are a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _users() -> Iterator[int]:
    """Users nobody else is, from a place of one's own on: others on this machine may have sessions, too."""
    first = secrets.randbelow(_USERS)
    return (_FIRST_USER + (first + number) % _USERS for number in itertools.count())


def _started(isolation: Isolation, *sockets: int) -> subprocess.Popen[bytes]:
    arguments = command(isolation, *sockets)
    return subprocess.Popen(arguments, pass_fds=sockets, env=environment(), stdin=subprocess.DEVNULL, cwd="/")
