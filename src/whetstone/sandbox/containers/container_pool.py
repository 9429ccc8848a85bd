"""Factory of container sessions, and containers that are started in advance."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import itertools
import os
import subprocess
import threading
import weakref

from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox.containers.container_options import CONTAINER_LIMITS, ContainerOptions
from whetstone.sandbox.containers.container_runtime import (
    FIRST_USER,
    OWNER,
    ContainerRuntime,
    process_owner,
    remove_leftover_containers,
    start_guard,
)
from whetstone.sandbox.containers.container_session import INIT, ContainerSession
from whetstone.sandbox.limits import Limits

_START_SECONDS = 120.0
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""Capabilities that root of a container keeps, such as for `apt-get install`."""
_numbers = itertools.count()


class ContainerPool:
    """Factory of sessions, each in its own container of one image.

    Args:
        options: Runtime, image and network.
        limits: Limits of each container and its calls.
        max_running: Maximum number of calls and starts at a time. None: four per core.

    Raises:
        SandboxError: The runtime or the image is missing.
    """

    def __init__(
        self, options: ContainerOptions, *, limits: Limits | None = None, max_running: int | None = None
    ) -> None:
        self.options, self.limits = options, limits or CONTAINER_LIMITS
        self.runtime = ContainerRuntime(options.container)
        if options.image:
            self.runtime.check_image(options.image)
        self.sessions: weakref.WeakSet[ContainerSession] = weakref.WeakSet()
        """Sessions that were created and not collected."""
        self._max_running = max_running or 4 * len(os.sched_getaffinity(0))
        self._semaphores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._semaphores = weakref.WeakKeyDictionary()
        self._image_lock = threading.Lock()
        self._image = ""
        self._removing: list[subprocess.Popen[bytes]] = []

    def session(
        self,
        *,
        persistent: bool = True,
        seed: int = 0,
        limits: Limits | None = None,
        shell: str = "sh",
        workdir: str = "",
    ) -> ContainerSession:
        """Create a session for the running event loop; its first call starts the container.

        Args:
            persistent: Whether the container lasts for the session; otherwise each call has a new one.
            seed: Without effect: programs of a container take their seeds from their arguments.
            limits: Limits of the container and its calls; those of the pool by default.
            shell: Program that reads commands, `sh` or `bash`.
            workdir: Folder in which commands start; that of the image by default.
        """
        bounds = limits or self.limits
        session = ContainerSession(
            self.runtime,
            self,
            limits=bounds,
            persistent=persistent,
            place=self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_running)),
            shell=shell,
            workdir=workdir,
        )
        self.sessions.add(session)
        return session

    def prepare_image(self) -> str:
        """Return the name of the image; build or import it if it is needed.

        Raises:
            SandboxError: It cannot be built.
        """
        with self._image_lock:
            if not self._image:
                self._image = self.runtime.resolve_image(self.options)
            return self._image

    def close(self) -> None:
        """Remove all containers of the pool."""
        for session in list(self.sessions):
            session.close()
        for removing in self._removing:
            with contextlib.suppress(subprocess.TimeoutExpired):
                removing.wait(timeout=_START_SECONDS)
        self._removing.clear()

    async def start(self, limits: Limits, snapshot: str) -> str:
        """See `ContainerFactory`."""
        _prepare_machine(self.options.container)
        if not snapshot or not self.runtime.user_arguments():
            return await self._create(limits, snapshot or await self._image_name(), "run", "-d")
        name = await self._create(limits, await self._image_name(), "create")
        try:
            await self._copy_files(await self._upper(snapshot), await self._upper(name))
            started = await self.runtime.call("start", name, seconds=_START_SECONDS)
            if started.code != 0:
                raise InfrastructureError(f"{self.options.container} start: {started.error_line}")
        except BaseException:
            self.discard(name)
            raise
        return name

    async def save(self, session: ContainerSession) -> str:
        """See `ContainerFactory`.

        Without a mapping of users, the copy is an image. With one, podman would store the ids of this machine in an
        image; the copy is then a container that is never started.
        """
        if not self.runtime.user_arguments():
            label = f"LABEL {OWNER}={process_owner()}"
            saved = await self.runtime.call("commit", "--change", label, session.name, seconds=_START_SECONDS)
            if saved.code != 0:
                raise InfrastructureError(f"{self.options.container} commit: {saved.error_line}")
            return saved.output.decode().strip()
        name = await self._create(session.limits, await self._image_name(), "create")
        await self.runtime.call("pause", session.name)
        try:
            await self._copy_files(session.upper_folder, await self._upper(name))
        except BaseException:
            self.discard(name)
            raise
        finally:
            await self.runtime.call("unpause", session.name)
        return name

    def discard(self, name: str) -> None:
        """See `ContainerFactory`."""
        self._remove_later("rm", "-f", name)

    def discard_snapshot(self, snapshot: str) -> None:
        """Remove a snapshot without waiting for it."""
        self._remove_later("rm" if self.runtime.user_arguments() else "rmi", "-f", snapshot)

    async def _image_name(self) -> str:
        try:
            return await asyncio.to_thread(self.prepare_image)
        except SandboxError as error:
            raise InfrastructureError(str(error)) from error

    async def _create(self, limits: Limits, image: str, *verb: str) -> str:
        """Create a container, and start it if the verb is `run`.

        Raises:
            InfrastructureError: The runtime refuses it.
        """
        name = f"whetstone-{os.getpid()}-{next(_numbers)}"
        arguments = self._arguments(name, limits, image)
        created = await self.runtime.call(*verb, *arguments, seconds=_START_SECONDS)
        if created.code == 0:
            if verb[0] == "run":
                await self._own_files(name)
            return name
        await self.runtime.call("rm", "-f", name)
        raise InfrastructureError(f"{self.options.container} {verb[0]}: {image}: {created.error_line[-600:]}")

    async def _own_files(self, name: str) -> None:
        """Give files that podman created in a new container, such as its working directory, to root of the container.

        With a mapping of users they belong to root of this machine, and the container could not write to them.
        """
        if not self.runtime.user_arguments():
            return
        folders = "{{.GraphDriver.Data.UpperDir}} {{.GraphDriver.Data.MergedDir}}"
        inspected = await self.runtime.call("container", "inspect", "--format", folders, name)
        places = inspected.output.decode().split()
        if len(places) == 2:
            await asyncio.to_thread(_change_owner, *places)

    async def _upper(self, name: str) -> str:
        inspected = await self.runtime.call("container", "inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", name)
        return inspected.output.decode().strip()

    async def _copy_files(self, source: str, target: str) -> None:
        """Copy the changed files of one container to another that does not run, with owners, modes and deletions.

        Raises:
            InfrastructureError: They cannot be copied.
        """
        if not (source and target):
            raise InfrastructureError(f"{self.options.container}: a snapshot requires the storage driver overlay")
        words = ["cp", "-a", "--", f"{source}/.", target]
        copied = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=False)
        if copied.returncode != 0:
            raise InfrastructureError(f"snapshot: {(copied.stderr.strip().splitlines() or ['cp failed'])[-1]}")

    def _arguments(self, name: str, limits: Limits, image: str) -> list[str]:
        """Return the arguments that start a container."""
        files, size = limits.open_files, limits.file_mb << 20
        arguments = ["--name", name, "--label", f"{OWNER}={process_owner()}"]
        arguments += ["--network", "none" if self.options.network == "none" else "bridge", "--hostname", "sandbox"]
        arguments += ["--cpus", f"{self.options.cpus:g}", "--pids-limit", str(limits.kernel_limits.processes)]
        arguments += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
        arguments += ["--ulimit", f"nofile={files}:{files}", "--ulimit", f"fsize={size}:{size}"]
        arguments += [*self.runtime.isolation_arguments(), *self.runtime.user_arguments()]
        arguments += ["--cap-drop", "ALL", *(word for each in _CAPABILITIES for word in ("--cap-add", each))]
        arguments += ["--security-opt", "no-new-privileges", "--log-driver", "none", "--stop-timeout", "0"]
        arguments += ["--pull=never", *(["--http-proxy=false"] if self.options.container == "podman" else [])]
        return [*arguments, "--entrypoint", "sh", image, "-c", INIT]

    def _remove_later(self, *arguments: str) -> None:
        self._removing = [each for each in self._removing if each.poll() is None]
        words = self.runtime.build_command(*arguments)
        quiet = subprocess.DEVNULL
        self._removing.append(subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet))


def _change_owner(upper: str, merged: str) -> None:
    """Give the files of `upper` that belong to root of this machine to root of a container, in its mounted files."""
    for folder, folders, files in os.walk(upper):
        for entry in (*folders, *files):
            path = os.path.join(folder, entry)
            if os.lstat(path).st_uid == 0:
                os.chown(
                    os.path.join(merged, os.path.relpath(path, upper)), FIRST_USER, FIRST_USER, follow_symlinks=False
                )


@functools.cache
def _prepare_machine(program: str) -> None:
    """Remove what earlier processes left, and start the guard of this one."""
    remove_leftover_containers(ContainerRuntime(program))
    start_guard(program)


@functools.cache
def shared_containers(options: ContainerOptions) -> ContainerPool:
    """Return the pool of an image; it is closed when the process ends.

    Raises:
        SandboxError: The runtime or the image is missing.
    """
    pool = ContainerPool(options)
    atexit.register(pool.close)
    return pool
