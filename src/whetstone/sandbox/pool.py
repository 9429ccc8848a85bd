"""Sandbox: factory of isolated sessions, with a fork server in the strongest available isolation and reused jails.

Note:
    The server belongs to no event loop; a session belongs to the event loop in which it was created.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import secrets
import socket
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from whetstone.errors import InfrastructureError, SandboxError
from whetstone.plugins import OptionError
from whetstone.sandbox.cgroups import ControlGroup, list_parent_groups
from whetstone.sandbox.isolation import (
    WORK,
    Isolation,
    choose_isolation,
    count_other_processes,
    has_own_users,
    private_folder,
)
from whetstone.sandbox.jail import Jail
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.sandbox_server import ForkServer
from whetstone.sandbox.session import Session

PRELOAD = (
    "ast", "bisect", "collections", "copy", "csv", "datetime", "decimal", "fractions", "functools", "heapq", "io",
    "itertools", "json", "math", "random", "re", "statistics", "string", "subprocess", "textwrap", "typing", "numpy",
    "numpy.random",
)  # fmt: skip
_FIRST_USER, _USERS = 40000, 20000
_RETRY_SECONDS = 0.2
_MAX_IDLE = 256
"""Maximum number of idle jails that are kept for later sessions; each uses about 2.5 MiB.

A training step ends up to this many episodes at once.
"""
_numbers = itertools.count()


class Sandbox:
    """Factory of sessions that run untrusted code.

    Components get one with `shared_sandbox`, so that all episodes of a process share the fork server.

    Args:
        isolation: `auto` for the strongest available layer, or the name of a layer; `unsafe` must be named.
        limits: Limits of each session; None: the defaults of `Limits`.
        preload: Modules that every interpreter has imported; missing ones are ignored.
        max_running: Maximum number of calls that run at a time, of all sessions. Further calls wait, and their time
            limit does not include the wait. None: sixteen per core, so that calls that wait leave room for calls that
            compute.
        container: Command that starts a container, including the Python inside; see `isolation.container_command`.

    Raises:
        SandboxError: If the isolation is not available on this machine.
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
        self.isolation = choose_isolation(isolation, container)
        self.limits = limits or Limits()
        self.max_running = max_running or 16 * len(os.sched_getaffinity(0))
        self.sessions: set[Session] = set()
        """Sessions that were created and not closed."""
        self._semaphores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._semaphores = weakref.WeakKeyDictionary()
        self._leftovers: list[Callable[[], bool]] = []
        self.server = ForkServer(self.isolation, tuple(container), tuple(preload), leave=self._leftovers.append)
        # if processes are counted for the whole user, the limit of one session does not fit the next
        self._reuses_jails = self.isolation in (Isolation.NAMESPACES, Isolation.CONTAINER) or os.getuid() == 0
        self._idle: defaultdict[Limits, list[Jail]] = defaultdict(list)
        """Jails of closed sessions by limits, for reuse."""
        self._users = _user_ids() if has_own_users(self.isolation) else None

    def session(
        self, *, persistent: bool = True, seed: int = 0, limits: Limits | None = None, reuses_jails: bool = True
    ) -> Session:
        """Create a session for the running event loop.

        Its first call starts it, and the fork server if necessary.

        Args:
            persistent: Whether variables and files are kept between calls.
            seed: Seed of the interpreter's random numbers.
            limits: Limits of a call; None: those of the sandbox.
            reuses_jails: Whether the session can take the emptied jail of another one, and leave its own to others.
        """
        session = Session(
            self._take_jail if reuses_jails else self._start_new_jail,
            self._return_jail
            if reuses_jails
            else lambda session, jail, _: self._return_jail(session, jail, clean=False),
            limits=limits or self.limits,
            persistent=persistent,
            seed=seed,
            place=self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.max_running)),
            watched=self.isolation in (Isolation.LANDLOCK, Isolation.UNSAFE),
        )
        self.sessions.add(session)
        return session

    def grader_factory(self, image: str) -> Callable[[Limits], Session]:
        """See `SessionPool`.

        Raises:
            OptionError: An image is set.
            SandboxError: The isolation does not close the network.
        """
        if image:
            raise OptionError("image", "requires a container: `sandbox: {container: podman, image: NAME}`; remove it")
        if self.isolation not in (Isolation.NAMESPACES, Isolation.LANDLOCK):
            raise SandboxError(
                f"isolation {self.isolation} does not close the network; set `sandbox: auto`, or a container: "
                "`sandbox: {container: podman, image: NAME}`"
            )
        return lambda limits: self.session(limits=limits, reuses_jails=False)

    def close(self) -> None:
        """End all sessions and the fork server, and delete their folders."""
        for session in list(self.sessions):
            session.close()
        for jail in [jail for jails in self._idle.values() for jail in jails]:
            self._discard(jail)
        self._idle.clear()
        self.server.close()
        for _ in range(200):
            if not self._remove_leftovers():
                return
            time.sleep(0.01)  # processes take a moment to end

    async def _take_jail(self, limits: Limits) -> Jail:
        """Return an empty jail with these limits: a reused one, or a new one.

        Raises:
            InfrastructureError: If no jail can be started in three attempts.
        """
        idle = self._idle[limits]
        while idle:
            jail = idle.pop()
            if jail.is_alive:
                return jail
            self._discard(jail)
        return await self._start_new_jail(limits)

    async def _start_new_jail(self, limits: Limits) -> Jail:
        """Return a jail in which no code has run.

        Raises:
            InfrastructureError: If no jail can be started in three attempts.
        """
        for attempt in (1, 2, 3):  # a server that has just died may still have accepted a request
            jail = Jail(limits, folder=self._folder())
            try:
                if await jail.start(functools.partial(self._start_jail, jail)):
                    if self.isolation in (Isolation.NAMESPACES, Isolation.LANDLOCK) and list_parent_groups():
                        jail.group = ControlGroup(
                            next(_numbers), memory=limits.total_bytes, processes=limits.kernel_limits.processes
                        )
                        jail.group.add_process(jail.process)  # it has no children yet
                    return jail
            except OSError as error:
                self._discard(jail)
                raise InfrastructureError(f"sandbox: no session can be started: {error}") from None
            except BaseException:
                self._discard(jail)
                raise
            self._discard(jail)
            await asyncio.sleep(_RETRY_SECONDS)
            if attempt == 2:
                self.server.retire_server()
        raise InfrastructureError("sandbox: no session started in three attempts; check it with `whetstone doctor`")

    def _folder(self) -> str:
        watched = self.isolation in (Isolation.LANDLOCK, Isolation.UNSAFE)
        return private_folder() if watched else ""

    async def _start_jail(self, jail: Jail, guest_end: socket.socket) -> None:
        """Request that the fork server starts a jail.

        Raises:
            InfrastructureError: If the server cannot be started or reached.
        """
        user = next(self._users) if self._users is not None else None
        if jail.folder and user is not None:
            os.chown(jail.folder, user, user)
        num_others = count_other_processes(self.isolation)  # plus those that are being started
        max_processes = jail.limits.kernel_limits.processes + (num_others and num_others + 3 * len(self.sessions))
        bounds = asdict(jail.limits.kernel_limits) | {"processes": max_processes}
        folder = WORK if self.isolation is Isolation.NAMESPACES else jail.folder  # in a container the guest creates one
        await self.server.open({"bounds": bounds, "user": user, "folder": folder}, guest_end)
        jail.server_alive = self.server.liveness_check()

    def _return_jail(self, session: Session, jail: Jail, clean: bool) -> None:
        """Keep the jail of a closed session for reuse if possible; otherwise discard it."""
        self.sessions.discard(session)
        if clean and self._reuses_jails and self.server.is_running and sum(map(len, self._idle.values())) < _MAX_IDLE:
            try:
                jail.request_cleanup()
                self._idle[jail.limits].append(jail)
                return
            except InfrastructureError:
                pass
        self._discard(jail)
        self._remove_leftovers()

    def _discard(self, jail: Jail) -> None:
        jail.close()
        self._leftovers.append(jail.remove)

    def _remove_leftovers(self) -> int:
        """Delete what discarded jails left, and return the number of jails that could not be deleted yet."""
        self._leftovers[:] = [remove for remove in self._leftovers if not remove()]
        return len(self._leftovers)


def _user_ids() -> Iterator[int]:
    """Yield user ids for sessions, from a random start: other processes of this machine may have sessions, too."""
    first = secrets.randbelow(_USERS)
    return (_FIRST_USER + (first + number) % _USERS for number in itertools.count())
