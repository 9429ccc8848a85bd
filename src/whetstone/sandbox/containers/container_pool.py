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
from collections.abc import Callable
from dataclasses import replace

from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox.containers.container_options import CONTAINER_LIMITS, ContainerOptions
from whetstone.sandbox.containers.container_runtime import (
    FIRST_USER,
    OWNER,
    CommandResult,
    ContainerPlace,
    ContainerRuntime,
    process_owner,
    remove_leftover_containers,
    start_guard,
)
from whetstone.sandbox.containers.container_session import INIT, ContainerSession
from whetstone.sandbox.containers.egress_proxy import PORT, EgressProxy, proxy_variables
from whetstone.sandbox.containers.seccomp_profile import seccomp_arguments
from whetstone.sandbox.containers.warm_pool import WarmPool
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
        self._removing_lock = threading.Lock()
        self._warm_pool = WarmPool(self._start_new, self.discard, size=options.warm_containers)

    def session(
        self,
        *,
        persistent: bool = True,
        seed: int = 0,
        limits: Limits | None = None,
        shell: str = "sh",
        workdir: str = "",
    ) -> ContainerSession:
        """Create a session for the running event loop; its first call takes a container.

        Args:
            persistent: Whether the container lasts for the session; otherwise each call has a new one.
            seed: Without effect: programs of a container take their seeds from their arguments.
            limits: Limits of the container and its calls; those of the pool by default.
            shell: Program that reads commands, `sh` or `bash`.
            workdir: Folder in which commands start; that of the image by default.
        """
        bounds = limits or self.limits
        self._warm_pool.fill_pool(bounds)
        session = ContainerSession(
            self.runtime,
            self,
            limits=bounds,
            persistent=persistent,
            place=self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_running)),
            shell=shell,
            workdir=workdir,
        )
        if self.options.allowed_hosts:
            session.ports[PORT] = EgressProxy(self.options.allowed_hosts).serve_socket
        self.sessions.add(session)
        return session

    def grader_factory(self, image: str) -> Callable[[Limits], ContainerSession]:
        """See `SessionPool`."""
        options = replace(self.options, network="none")
        if image:
            options = replace(options, image=image, build="", rootfs="")
        pool = self if options == self.options else shared_containers(options)
        return lambda limits: pool.session(limits=limits)

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
        self._warm_pool.close()
        for session in list(self.sessions):
            session.close()
        with self._removing_lock:
            started, self._removing = self._removing, []
        for removing in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                removing.wait(timeout=_START_SECONDS)

    async def start(self, limits: Limits, snapshot: str) -> ContainerPlace:
        """See `ContainerFactory`."""
        if snapshot:
            return await self._warm_pool.start(lambda: self._start_copy(limits, snapshot))
        return await self._warm_pool.take(limits)

    def _start_new(self, limits: Limits) -> ContainerPlace:
        return self._run_container(limits, self._image_name())

    def _run_container(self, limits: Limits, image: str) -> ContainerPlace:
        """Start a container and give files that podman created, such as its working directory, to its root.

        With a mapping of users they belong to root of this machine, and the container could not write to them.
        """
        _prepare_machine(self.options.container)
        name = self._create(limits, image, "run", "-d")
        try:
            place = self.runtime.inspect_container(name)
            if self.runtime.user_arguments() and place.upper:
                _change_owner(place.upper, place.merged)
        except BaseException:
            self.discard(name)
            raise
        return place

    def _start_copy(self, limits: Limits, snapshot: str) -> ContainerPlace:
        """Start a container with the files of a snapshot."""
        if not self.runtime.user_arguments():
            return self._run_container(limits, snapshot)
        name = self._create(limits, self._image_name(), "create")
        try:
            self._copy_files(self.runtime.inspect_container(snapshot).upper, name)
            started = self._command("start", name)
            if started.code != 0:
                raise InfrastructureError(f"{self.options.container} start: {started.error_line}")
            return self.runtime.inspect_container(name)
        except BaseException:
            self.discard(name)
            raise

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
        return await asyncio.to_thread(self._save_files, session.name, session.limits, session.upper_folder)

    def _save_files(self, source: str, limits: Limits, upper: str) -> str:
        """Copy the files of a running container to a container that is never started, and return its name."""
        name = self._create(limits, self._image_name(), "create")
        self._command("pause", source)
        try:
            self._copy_files(upper, name)
        except BaseException:
            self.discard(name)
            raise
        finally:
            self._command("unpause", source)
        return name

    def discard(self, name: str) -> None:
        """See `ContainerFactory`."""
        self._remove_later("rm", "-f", name)

    def discard_snapshot(self, snapshot: str) -> None:
        """Remove a snapshot without waiting for it."""
        self._remove_later("rm" if self.runtime.user_arguments() else "rmi", "-f", snapshot)

    def _image_name(self) -> str:
        try:
            return self.prepare_image()
        except SandboxError as error:
            raise InfrastructureError(str(error)) from error

    def _command(self, *arguments: str) -> CommandResult:
        try:
            return self.runtime.run(*arguments, seconds=_START_SECONDS)
        except SandboxError as error:
            raise InfrastructureError(str(error)) from None

    def _create(self, limits: Limits, image: str, *verb: str) -> str:
        """Create a container, and start it if the verb is `run`.

        Raises:
            InfrastructureError: The runtime refuses it.
        """
        name = f"whetstone-{os.getpid()}-{next(_numbers)}"
        created = self._command(*verb, *self._arguments(name, limits, image))
        if created.code == 0:
            return name
        self.discard(name)
        raise InfrastructureError(f"{self.options.container} {verb[0]}: {image}: {created.error_line[-600:]}")

    def _copy_files(self, source: str, name: str) -> None:
        """Copy changed files to a container that does not run, with owners, modes and deletions.

        Raises:
            InfrastructureError: They cannot be copied.
        """
        target = self.runtime.inspect_container(name).upper
        if not (source and target):
            raise InfrastructureError(f"{self.options.container}: a snapshot requires the storage driver overlay")
        words = ["cp", "-a", "--", f"{source}/.", target]
        copied = subprocess.run(words, capture_output=True, text=True, check=False)
        if copied.returncode != 0:
            raise InfrastructureError(f"snapshot: {(copied.stderr.strip().splitlines() or ['cp failed'])[-1]}")

    def _arguments(self, name: str, limits: Limits, image: str) -> list[str]:
        """Return the arguments that start a container."""
        files, size = limits.open_files, limits.file_mb << 20
        arguments = ["--name", name, "--label", f"{OWNER}={process_owner()}"]
        arguments += ["--network", "bridge" if self.options.network == "open" else "none", "--hostname", "sandbox"]
        if self.options.allowed_hosts:
            arguments += [
                word
                for item in proxy_variables(self.options.allowed_hosts).items()
                for word in ("--env", "=".join(item))
            ]
        arguments += ["--cpus", f"{self.options.cpus:g}", "--pids-limit", str(limits.kernel_limits.processes)]
        arguments += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
        arguments += ["--ulimit", f"nofile={files}:{files}", "--ulimit", f"fsize={size}:{size}"]
        arguments += [*self.runtime.isolation_arguments(), *self.runtime.user_arguments()]
        arguments += ["--cap-drop", "ALL", *(word for each in _CAPABILITIES for word in ("--cap-add", each))]
        arguments += [*seccomp_arguments(self.options.container), "--security-opt", "no-new-privileges"]
        arguments += ["--log-driver", "none", "--stop-timeout", "0"]
        arguments += ["--pull=never", *(["--http-proxy=false"] if self.options.container == "podman" else [])]
        return [*arguments, "--entrypoint", "sh", image, "-c", INIT]

    def _remove_later(self, *arguments: str) -> None:
        words = self.runtime.build_command(*arguments)
        quiet = subprocess.DEVNULL
        with self._removing_lock:  # threads that start containers call this too
            self._removing = [each for each in self._removing if each.poll() is None]
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
def shared_containers(options: ContainerOptions, *, max_running: int | None = None) -> ContainerPool:
    """Return the pool of an image; it is closed when the process ends. See `ContainerPool` for `max_running`.

    Raises:
        SandboxError: The runtime or the image is missing.
    """
    pool = ContainerPool(options, max_running=max_running)
    atexit.register(pool.close)
    return pool
