"""Session in an environment of Harbor: Docker, Podman, E2B, Daytona, Modal, Kubernetes and others.

`harbor.environments.base.BaseEnvironment` starts and stops the environment, copies files and runs commands. The session
adds the current folder, limits of time and output, and the attribution of failures, as for a container.

Note:
    Code of the model can end its own shell, fill its output with anything, and stop its environment. The end of a
    command is therefore a line with a random token; without that line, the environment is tried, and replaced if it
    does not respond. An exception of the provider is a failure of the infrastructure.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from whetstone.errors import InfrastructureError, SandboxError
from whetstone.optional_dependencies import install_command
from whetstone.plugins import OptionError, validate_options
from whetstone.sandbox.call_outcomes import describe_end
from whetstone.sandbox.containers.container_options import CONTAINER_LIMITS
from whetstone.sandbox.containers.container_session import SessionWithoutPython, file_tool_program, read_file_tool_reply
from whetstone.sandbox.containers.harbor_archives import SPARE_SECONDS, download_folder, limit_call, upload_archive
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import Ending, Outcome, export_variables
from whetstone.truncate_text import truncate_middle

_START_SECONDS, _STOP_SECONDS = 1800.0, 120.0
_MAX_COMMAND_BYTES = 1 << 16
"""Maximum length of a command that is an argument; a longer one is copied as a file."""
_CALL = """f=/tmp/.{token}; cd -- {folder} 2>/dev/null || cd /
WHETSTONE_CALL={token} "$(command -v bash || echo sh)" -c {script} > "$f" 2>&1 < /dev/null
c=$?; s=$(wc -c < "$f"); head -c {most} "$f"
printf '\\n{token} %s %s %s\\n' "$c" "$s" "$(cat "$f.cwd" 2>/dev/null)"; rm -f "$f" "$f.cwd" "$f.sh"
"""
_SCRIPT = "trap '' HUP; ulimit -f {blocks}; trap 'pwd > /tmp/.{token}.cwd' EXIT; eval {command}"
_END = """for p in $(grep -l {token} /proc/[0-9]*/environ 2>/dev/null)
do p=${{p#/proc/}}; kill -9 "${{p%/environ}}"; done; echo here"""
"""Ends the processes of a call by their environment, because some environments share the processes of their machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborOptions:
    """Environment of Harbor for each episode: `sandbox: {container: harbor, environment: e2b, image: NAME}`.

    One of `image` and `build` is required.
    """

    container: Literal["harbor"]
    """Package that starts the environments; it requires Python 3.12 or newer."""
    environment: str
    """Name of an environment of Harbor, such as `docker`, `e2b` or `daytona`; or `package.module:Class`."""
    image: str = ""
    """Name of an image."""
    build: str = ""
    """Folder with a `Dockerfile`."""
    network: Literal["none", "open"] | tuple[str, ...] = "none"
    """Network: none, open, or a list of permitted hosts. An environment that cannot enforce it is refused."""
    cpus: float | None = None
    """Number of processors; that of the provider by default."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment; see `harbor environment schema NAME`."""

    def __post_init__(self) -> None:
        if bool(self.image) == bool(self.build):
            raise OptionError("sandbox.image", "set one of image and build")
        if self.build and not Path(self.build).is_dir():
            raise OptionError("sandbox.build", f"there is no folder {self.build}; create it with a Dockerfile")


class HarborEnvironments:
    """Factory of sessions, each in its own environment.

    Args:
        values: Values of `sandbox` in a recipe; see `HarborOptions`.

    Raises:
        OptionError: An option is invalid.
        SandboxError: Harbor is not installed, or the environment lacks a package or credentials, or cannot enforce an
            option.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        try:
            self._values = dict(values)
            self.options = HarborOptions(**validate_options(HarborOptions, dict(values)))
        except OptionError as error:
            raise OptionError(f"sandbox.{error.key.removeprefix('sandbox.')}", error.message) from None
        try:
            from harbor.environments.factory import EnvironmentFactory
            from harbor.models.trial.config import EnvironmentConfig
        except ImportError as error:
            raise SandboxError(
                f"sandbox.container: harbor cannot be imported ({error}); {install_command('harbor')}, which requires "
                f"Python 3.12 or newer (this is {sys.version_info.major}.{sys.version_info.minor})"
            ) from None
        place = "import_path" if ":" in self.options.environment else "type"
        try:
            self._config = EnvironmentConfig(
                **{place: self.options.environment}, kwargs={**self.options.options}, override_cpus=self.options.cpus
            )
            EnvironmentFactory.run_preflight(self._config.type, self._config.import_path, self._config.kwargs)
            with tempfile.TemporaryDirectory() as folder:
                self.create_environment(Path(folder), CONTAINER_LIMITS)  # reports options that it cannot enforce
        except (Exception, SystemExit) as error:  # providers raise their own types
            reason = " ".join(str(error).split())[:600]
            raise SandboxError(f"sandbox.environment: {self.options.environment}: {reason}") from None

    def session(self, *, persistent: bool = True, seed: int = 0, limits: Limits | None = None) -> HarborSession:
        """Create a session; its first call starts an environment. `seed` has no effect."""
        return HarborSession(self.create_environment, limits=limits or CONTAINER_LIMITS, persistent=persistent)

    def grader_factory(self, image: str) -> Callable[[Limits], HarborSession]:
        """See `SessionPool`."""
        values = {**self._values, "network": "none", **({"image": image, "build": ""} if image else {})}
        pool = shared_harbor(values)
        return lambda limits: pool.session(limits=limits)

    def create_environment(self, folder: Path, limits: Limits) -> Any:
        """Return a new `BaseEnvironment` that has not started.

        Args:
            folder: Empty folder of this machine for its files.
            limits: Limits of memory and files.
        """
        from harbor.environments.factory import EnvironmentFactory
        from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
        from harbor.models.trial.paths import TrialPaths

        options, name = self.options, f"whetstone-{secrets.token_hex(6)}"
        trial = TrialPaths(trial_dir=folder / "trial")
        trial.mkdir()
        empty = folder / "environment"
        empty.mkdir()
        mode = {"none": "no-network", "open": "public"}.get(str(options.network), "allowlist")
        hosts = [] if isinstance(options.network, str) else [*options.network]
        return EnvironmentFactory.create_environment_from_config(
            self._config,
            environment_dir=Path(options.build) if options.build else empty,
            environment_name="whetstone",
            session_id=name,
            trial_paths=trial,
            task_env_config=EnvironmentConfig(
                docker_image=options.image or None, memory_mb=limits.memory_mb, storage_mb=limits.folder_mb
            ),
            network_policy=NetworkPolicy(network_mode=mode, allowed_hosts=hosts),
        )


def shared_harbor(values: Mapping[str, Any]) -> HarborEnvironments:
    """Return the factory of these options, which is created once per process; see `HarborEnvironments`."""
    return _create_once(json.dumps(values, sort_keys=True, default=list))


@functools.cache
def _create_once(values: str) -> HarborEnvironments:
    return HarborEnvironments(json.loads(values))


class HarborSession(SessionWithoutPython):
    """Calls of one episode in an environment of Harbor, one at a time. Python variables do not last.

    Args:
        create: Creates an environment from an empty folder of this machine and limits.
        limits: Limits of a call; the environment has those of memory and files if it can enforce them.
        persistent: Whether the environment lasts for the session; otherwise each call has a new one.
    """

    def __init__(self, create: Callable[[Path, Limits], Any], *, limits: Limits, persistent: bool) -> None:
        self.limits, self.persistent = limits, persistent
        self.files: dict[str, bytes] = {}
        """Contents by path, written when an environment starts."""
        self._create, self._lock = create, asyncio.Lock()
        self._environment: Any = None
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._workdir = self._folder = "/"
        self._has_run_code = False
        self._stopping: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        """Start the environment in advance; otherwise the first call starts it.

        Raises:
            InfrastructureError: It does not start.
        """
        await self._call(self._succeed)

    async def _succeed(self) -> Outcome:
        return Outcome(Ending.OK)

    async def shell(
        self,
        command: str,
        *,
        wall_seconds: float | None = None,
        variables: Mapping[str, str] | None = None,
        user: str = "",
    ) -> Outcome:
        """Run a shell command; files and the current folder are kept if the session is persistent.

        `user` has no effect.

        Raises:
            InfrastructureError: The environment has failed; nothing is known about the command.
        """
        exported = export_variables(variables) + command

        async def run() -> Outcome:
            self._has_run_code = True
            return await self._run(exported, wall_seconds or self.limits.wall_seconds)

        return await self._call_tool(run)

    async def call_file_tool(self, function: str, **arguments: str | int) -> Outcome:
        """Call a function of `guest/files.py` with the Python of the environment and return its result."""
        program, request = file_tool_program(function, arguments)

        async def run() -> Outcome:
            path = f"/tmp/.{secrets.token_hex(8)}"
            await self._upload(f"{path}.py", program.encode())
            await self._upload(path, request)
            call = f"cd -- {shlex.quote(self._workdir)}; python3 -I {path}.py < {path}"
            return await self._run(f"({call}); c=$?; rm -f {path}*; exit $c", self.limits.wall_seconds)

        return read_file_tool_reply(await self._call_tool(run), self.limits.output_characters)

    async def read(self, path: str, *, max_bytes: int = 8 << 20) -> Outcome:
        """Read a file; the bytes are in `data`."""

        async def run() -> Outcome:
            place = str(PurePosixPath(self._workdir) / path)
            sized = await self._run(f"test -f {shlex.quote(place)} && wc -c < {shlex.quote(place)}", 60)
            if sized.ending is not Ending.OK or sized.exit_code or not sized.output.strip().isdecimal():
                return Outcome(Ending.ERROR, error=f"no such file: {path}")
            if int(sized.output) > max_bytes:
                return Outcome(Ending.ERROR, error=f"{path} has more than {max_bytes} bytes")
            with tempfile.TemporaryDirectory() as folder:
                target = Path(folder) / "file"
                await limit_call(self._environment.download_file(place, target), "download_file")
                return Outcome(Ending.OK, data=await asyncio.to_thread(target.read_bytes))

        return await self._call_tool(run)

    async def write(self, path: str, data: bytes) -> Outcome:
        """Write a file and create its parent folders."""

        async def run() -> Outcome:
            await self._upload(str(PurePosixPath(self._workdir) / path), data)
            return Outcome(Ending.OK)

        return await self._call_tool(run)

    async def download_archive(self, folder: str, archive: IO[bytes]) -> Outcome:
        """Write the files, folders and links of a folder to a file of this machine as a tar archive.

        Raises:
            InfrastructureError: The environment has failed, or has no `tar`.
        """

        async def run() -> Outcome:
            try:
                return await download_folder(self._environment, folder, archive, self.limits)
            except InfrastructureError:  # a connection may have been lost
                return await download_folder(self._environment, folder, archive, self.limits)

        return await self._call(run)

    async def upload_archive(self, archive: IO[bytes], folder: str) -> Outcome:
        """Replace the contents of a folder by those of a tar archive, which is read from its start.

        Raises:
            InfrastructureError: The environment has failed, or has no `tar`.
        """
        return await self._call(lambda: upload_archive(self._environment, archive, folder))

    @property
    def working_folder(self) -> str:
        """Return the folder in which commands start; that of the image is known once the session has started."""
        return self._workdir

    def close(self) -> Awaitable[Any] | None:
        """Stop the environment and delete it; return an awaitable that waits for that and for earlier ones."""
        environment, self._environment = self._environment, None
        place, self._place = self._place, None
        if environment is not None:
            self._stopping.append(asyncio.ensure_future(_stop(environment, place)))
        self._stopping = [each for each in self._stopping if not each.done()]
        return asyncio.shield(asyncio.gather(*self._stopping)) if self._stopping else None

    async def _call(self, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        requested = time.perf_counter()
        async with self._lock:
            try:
                await self._prepare()
                started = time.perf_counter()
                outcome = await run()
            except BaseException:
                self.close()  # cancelled or failed during a call: the state of the environment is unknown
                raise
            if not self.persistent and (stopped := self.close()) is not None:
                await stopped
            return replace(outcome, seconds=time.perf_counter() - started, queue_seconds=started - requested)

    async def _call_tool(self, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Return the outcome of a call, also if it fails after code of the model has run and an environment responds.

        Raises:
            InfrastructureError: The environment has failed.
        """

        async def attribute() -> Outcome:
            try:
                return await run()
            except InfrastructureError as error:
                if not self._has_run_code:
                    raise
                remains = await self._end_processes(secrets.token_hex(8))
                return Outcome(Ending.CRASHED, error=f"{error}; {remains}", restarted=True)

        return await self._call(attribute)

    async def _prepare(self) -> None:
        if self._environment is not None:
            return
        self._place = tempfile.TemporaryDirectory(prefix="whetstone-harbor-", ignore_cleanup_errors=True)
        try:
            self._environment = await asyncio.to_thread(self._create, Path(self._place.name), self.limits)
        except Exception as error:  # providers raise their own types
            raise InfrastructureError(f"harbor: {error}") from error
        await limit_call(self._environment.start(force_build=False), "start", _START_SECONDS)
        self._folder, self._has_run_code = ".", False
        current = await self._run("pwd", 60)
        self._workdir = self._folder = current.output.strip() or "/"
        for path, data in self.files.items():
            await self._upload(str(PurePosixPath(self._workdir) / path), data)

    async def _run(self, command: str, seconds: float) -> Outcome:
        token, most = secrets.token_hex(8), self.limits.output_bytes
        quoted = shlex.quote(command)
        if len(command.encode()) > _MAX_COMMAND_BYTES:
            await self._upload(f"/tmp/.{token}.sh", command.encode())
            quoted = f'"$(cat /tmp/.{token}.sh)"'
        script = shlex.quote(_SCRIPT.format(blocks=self.limits.file_mb * 2048, token=token, command=quoted))
        call = _CALL.format(token=token, folder=shlex.quote(self._folder), script=script, most=most)
        began, text, reason = time.perf_counter(), "", "the shell ended before the command"
        try:
            async with asyncio.timeout(seconds + SPARE_SECONDS):
                result = await self._environment.exec(call, timeout_sec=math.ceil(seconds))
            text, reason = result.stdout or "", f"{reason} (exit code {result.return_code})"
        except Exception as error:  # providers raise their own types, also if the command takes too long
            if time.perf_counter() - began < seconds:
                raise InfrastructureError(f"harbor: exec: {error}") from error
        if f"\r\n{token} " in text:  # some providers run commands in a terminal
            text = text.replace("\r\n", "\n")
        output, separator, end = text.rpartition(f"\n{token} ")
        code, _, rest = end.partition(" ")
        size, _, folder = rest.strip().partition(" ")
        if not (separator and code.isdecimal() and size.isdecimal()):
            if self._folder == ".":  # the first command, which is not that of a model
                raise InfrastructureError(f"harbor: exec: {reason}: {truncate_middle(text, 600)[0]}")
            is_late = time.perf_counter() - began >= seconds
            ending, what = describe_end("timeout", seconds, self.limits) if is_late else (Ending.CRASHED, reason)
            return Outcome(ending, error=f"{what}; {await self._end_processes(token)}", restarted=True)
        if folder.startswith("/"):
            self._folder = folder
        printed = truncate_middle(output, self.limits.output_characters)[0]
        if int(size) > most:
            return Outcome(Ending.OUTPUT, output=printed, error=f"it printed more than {most} bytes")
        return Outcome(Ending.OK, output=printed, exit_code=int(code))

    async def _end_processes(self, token: str) -> str:
        """End the processes of a call; replace an environment that does not respond. Return whether files are kept."""
        with contextlib.suppress(InfrastructureError):
            ended = await limit_call(self._environment.exec(_END.format(token=token), timeout_sec=30), "exec")
            if "here" in (ended.stdout or ""):
                return "files are kept"
        self.close()
        await self._prepare()  # raises if the provider is at fault
        return "files are gone, there is a new environment"

    async def _upload(self, path: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            folder = shlex.quote(str(PurePosixPath(path).parent))
            await limit_call(self._environment.exec(f"mkdir -p -- {folder}", timeout_sec=30), "exec")
            await limit_call(self._environment.upload_file(file.name, path), "upload_file")


async def _stop(environment: Any, place: tempfile.TemporaryDirectory[str] | None) -> None:
    """Stop an environment; a failure is ignored, because the provider ends environments by itself."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_STOP_SECONDS):
            await environment.stop(delete=True)
    if place is not None:
        await asyncio.to_thread(place.cleanup)
