"""Session in a container: commands and files of one episode, in a container that no other session uses.

Processes that a call starts in the background are kept, such as a server that a later call requests. A call that
exceeds a limit ends all processes of the container; its files are kept, except after `Ending.DISK`.

Note:
    All programs of the container, its shell included, belong to untrusted code after the first call. Their output is
    only text. A container that stops or that starts no more commands was stopped by its code if another one starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files as package_files
from pathlib import Path
from typing import IO, Any, Protocol

from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox.archive_transfer import FolderTooLargeError, pack_files
from whetstone.sandbox.call_outcomes import describe_end
from whetstone.sandbox.captured_output import CapturedOutput
from whetstone.sandbox.containers.container_archives import find_last_line, load_archive, read_archive, save_archive
from whetstone.sandbox.containers.container_runtime import ContainerPlace, ContainerRuntime
from whetstone.sandbox.containers.loopback_ports import listen_in_container
from whetstone.sandbox.isolation import exceeds_limits
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import CodeTools, Ending, Outcome
from whetstone.truncate_text import truncate_middle

_CHUNK = 1 << 16
_SCAN_SECONDS = 1.0
_MARKER_BYTES = 8192
_LINGER_SECONDS = 10.0
"""Maximum seconds until the command of the runtime ends after its output, or after it was killed."""
_KILLED = 128 + signal.SIGKILL
_OUT_OF_CPU = 128 + signal.SIGXCPU
INIT = "i=0; while [ $i -lt 2000 ]; do sleep 60 & wait; i=$((i+1)); done"
"""First process: reaps orphans, and ends the container after 33 hours whatever happens to its owner."""
_CALL = """exec 9>&2 2>&1
whetstone_token=$1
echo "$whetstone_token" >&9
cd -- "$2" 2>/dev/null || cd -- "$3" 2>/dev/null || cd /
ulimit -S -t "$4" 2>/dev/null
trap 'echo "$whetstone_token $PWD" >&9' EXIT
shift 4
eval "$(cat)" </dev/null
"""
"""Reads a command from standard input. Descriptor 9 tells the host that it started, and the folder at its end."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """End of a command in a container."""

    event: str
    """`exit`, `timeout`, `output` or `disk`."""
    code: int
    started: bool
    """Whether the shell of the container started."""
    folder: str
    """Last folder of the shell; "" if it is unknown."""
    errors: str
    """Error output of the runtime."""


class ContainerFactory(Protocol):
    """Starts, copies and removes containers of one image."""

    async def start(self, limits: Limits, snapshot: str) -> ContainerPlace:
        """Return a container that no code has used, with the files of a snapshot unless it is "".

        Raises:
            InfrastructureError: It does not start.
        """
        ...

    async def save(self, session: ContainerSession) -> str:
        """Copy the files of a container and return the name of the copy."""
        ...

    def discard(self, name: str) -> None:
        """Remove a container without waiting for it."""
        ...


class SessionWithoutPython:
    """Session in which variables of Python do not last: a container, or an environment of a provider."""

    scratch_folder = ""
    """The root of the file system; see `SandboxSession`."""

    async def python(self, code: str, *, wall_seconds: float | None = None, tools: CodeTools | None = None) -> Outcome:
        """Refuse the call.

        Raises:
            SandboxError: Always.
        """
        raise SandboxError("python: not in a container; use shell with `python3 FILE`")


class ContainerSession(SessionWithoutPython):
    """Calls of one episode in a container, one at a time. It has the methods of `Session` except `python`.

    Args:
        runtime: Runtime of the container.
        factory: Starts, copies and removes containers.
        limits: Limits of the container and its calls.
        persistent: Whether the container lasts for the session; otherwise each call has a new one.
        place: Semaphore that a running call acquires.
        shell: Program that reads commands.
        workdir: Folder in which commands start; that of the image by default.
    """

    def __init__(
        self,
        runtime: ContainerRuntime,
        factory: ContainerFactory,
        *,
        limits: Limits,
        persistent: bool,
        place: asyncio.Semaphore,
        shell: str = "sh",
        workdir: str = "",
    ) -> None:
        self.limits, self.persistent, self.shell_program = limits, persistent, shell
        self.files: dict[str, bytes] = {}
        """Contents by path, written when a container starts."""
        self.ports: dict[int, Callable[[socket.socket], Awaitable[asyncio.Server]]] = {}
        """Functions that serve a listening socket, by port on the loopback interface of the container."""
        self._servers: list[asyncio.Server] = []
        self._runtime, self._factory, self._semaphore = runtime, factory, place
        self._workdir = workdir
        self._lock = asyncio.Lock()
        self._name = ""
        self._folder = ""
        self._snapshot = ""
        self._place = ContainerPlace("", 0, "", "", "/")
        self._out_of_memory = 0
        self._has_run_code = False

    @property
    def name(self) -> str:
        """Return the name of the running container; "" if there is none."""
        return self._name

    @property
    def working_folder(self) -> str:
        """Return the folder in which commands start; that of the image is known once the session has started."""
        return self._place.workdir

    @property
    def upper_folder(self) -> str:
        """Return the folder of this machine with the files that the container changed; "" if it cannot be read."""
        return self._place.upper

    async def start(self) -> None:
        """Start the container in advance; otherwise the first call starts it."""
        async with self._lock:
            await self._prepare()

    async def shell(
        self,
        command: str,
        *,
        wall_seconds: float | None = None,
        variables: Mapping[str, str] | None = None,
        user: str = "",
    ) -> Outcome:
        """Run a shell command; files and the current folder are kept if the session is persistent.

        Args:
            command: Command, of one or more lines.
            wall_seconds: Maximum duration; that of the limits by default.
            variables: Environment variables in addition to those of the image.
            user: Name or id of the user; that of the image by default.

        Raises:
            InfrastructureError: The runtime has failed; nothing is known about the command.
        """
        seconds = self.limits.wall_seconds if wall_seconds is None else wall_seconds
        cpu = max(1, int(self.limits.cpu_seconds if wall_seconds is None else max(wall_seconds, 1)))
        options = [word for item in (variables or {}).items() for word in ("--env", "=".join(item))]
        options += ["--user", user] if user else []
        token = secrets.token_hex(8)

        def script() -> list[str]:
            return [self.shell_program, "-c", _CALL, "sh", token, self._folder, self._place.workdir, str(cpu)]

        return await self._call(script, command.encode(), seconds, token=token, options=options)

    async def call_file_tool(self, function: str, **arguments: str | int) -> Outcome:
        """Call a function of `guest/files.py` with the container's Python and return its result."""
        program, request = file_tool_program(function, arguments)
        outcome = await self._run_program(["python3", "-I", "-c", program], request)
        return read_file_tool_reply(outcome, self.limits.output_characters)

    async def read(self, path: str, *, max_bytes: int = 8 << 20) -> Outcome:
        """Read a file; the bytes are in `data`."""
        taken = bytearray()
        command = 'cd -- "$1"; exec head -c "$2" -- "$3"'
        outcome = await self._run_program(
            ["sh", "-c", command, "sh", self._place.workdir, str(max_bytes + 1), path], b"", taken=taken
        )
        if outcome.ending is not Ending.OK:
            return outcome
        if outcome.exit_code:
            return Outcome(Ending.ERROR, error=f"no such file: {path}", seconds=outcome.seconds)
        if len(taken) > max_bytes:
            return Outcome(Ending.ERROR, error=f"{path} has more than {max_bytes} bytes", seconds=outcome.seconds)
        return replace(outcome, output="", exit_code=None, data=bytes(taken))

    async def write(self, path: str, data: bytes) -> Outcome:
        """Write a file and create its parent folders."""
        command = 'cd -- "$1"; mkdir -p -- "$(dirname -- "$2")" && cat > "$2"'
        outcome = await self._run_program(["sh", "-c", command, "sh", self._place.workdir, path], data)
        if outcome.ending is Ending.OK and outcome.exit_code:
            return Outcome(Ending.ERROR, error=f"{path} cannot be written", seconds=outcome.seconds)
        return outcome

    async def upload_archive(self, archive: IO[bytes], folder: str) -> Outcome:
        """Replace the contents of a folder by those of a tar archive, which is read from its start.

        Raises:
            InfrastructureError: The runtime cannot copy it.
        """
        async with self._lock:
            await self._prepare()
            command = 'rm -rf -- "$1"; mkdir -p -- "$1"'
            await self._runtime.call("exec", "--user", "0", self._name, "sh", "-c", command, "sh", folder)
            words = self._runtime.build_command("cp", "-", f"{self._name}:{folder}")
            await asyncio.to_thread(load_archive, archive, words)
        return Outcome(Ending.OK)

    async def download_folder(self, folder: str) -> dict[str, bytes]:
        """Return the contents of the regular files of a folder, by relative path.

        Files of more than 1 MiB are left out; at most 256 MiB are read.
        """
        async with self._lock:
            await self._prepare()
            return await asyncio.to_thread(
                read_archive, self._runtime.build_command("cp", f"{self._name}:{folder}/.", "-")
            )

    async def download_archive(self, folder: str, archive: IO[bytes]) -> Outcome:
        """Write the files, folders and links of a folder to a file of this machine as a tar archive.

        Devices and pipes are left out. A missing folder is empty. The container is paused during the copy.

        Raises:
            InfrastructureError: The runtime cannot copy it.
        """
        async with self._lock:
            if not self._name:  # its code exceeded a limit of the container
                return Outcome(Ending.OK)
            words = self._runtime.build_command("cp", f"{self._name}:{folder}/.", "-")
            await self._runtime.call("pause", self._name)
            try:
                max_bytes = self.limits.kernel_limits.folder
                await asyncio.to_thread(save_archive, words, archive, max_bytes=max_bytes)
            except FolderTooLargeError as error:
                return Outcome(Ending.DISK, error=str(error))
            finally:
                await self._runtime.call("unpause", self._name)
            return Outcome(Ending.OK)

    async def snapshot(self) -> str:
        """Return the name of a copy of all files of the container, for `restore`; processes are not part of it.

        Raises:
            InfrastructureError: The runtime cannot create it.
        """
        async with self._lock:
            await self._prepare()
            return await self._factory.save(self)

    async def restore(self, snapshot: str) -> None:
        """Replace the container by a new one with the files of a snapshot."""
        async with self._lock:
            self._end()
            self._snapshot = snapshot
            await self._prepare()

    @property
    def open(self) -> bool:
        """Return whether the session has a container."""
        return bool(self._name)

    def close(self) -> None:
        """End the container with all its processes and files, without waiting for it. A later call starts a new one."""
        self._end()

    def _end(self) -> None:
        name, self._name = self._name, ""
        self._close_ports()
        if name:
            self._factory.discard(name)

    # a call

    async def _run_program(self, words: list[str], data: bytes, *, taken: bytearray | None = None) -> Outcome:
        return await self._call(lambda: words, data, self.limits.wall_seconds, taken=taken)

    async def _call(
        self,
        words: Callable[[], list[str]],
        data: bytes,
        seconds: float,
        *,
        token: str = "",
        options: list[str] | None = None,
        taken: bytearray | None = None,
    ) -> Outcome:
        """Run a program in the container and return its outcome; `taken` receives its raw output instead."""
        requested = time.perf_counter()
        async with self._lock, self._semaphore:
            try:
                await self._prepare()
                started = time.perf_counter()
                captured = CapturedOutput(self.limits.output_characters)
                command = self._runtime.build_command("exec", "-i", *(options or ()), self._name, *words())
                ended = await self._execute(command, data, seconds, token, captured if taken is None else taken)
                if ended.folder:
                    self._folder = ended.folder
                outcome = await self._outcome(ended, seconds, has_token=bool(token))
                self._has_run_code = True
            except BaseException:
                self._end()  # cancelled or failed during a call: the state of the container is unknown
                raise
            if not self.persistent:
                self._end()
            return replace(
                outcome,
                output=captured.text(),
                seconds=time.perf_counter() - started,
                queue_seconds=started - requested,
            )

    async def _execute(
        self, command: list[str], data: bytes, seconds: float, token: str, output: CapturedOutput | bytearray
    ) -> _Ended:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        errors = bytearray()
        reading = [
            asyncio.ensure_future(self._read_output(process, output)),
            asyncio.ensure_future(_read_tail(process, errors)),
            asyncio.ensure_future(_feed(process, data)),
            asyncio.ensure_future(self._watch_disk()),
        ]
        event, ending = "exit", asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(seconds):
                waiting: set[asyncio.Future[Any]] = {ending, reading[0], reading[3]}
                while True:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    events = [each.result() for each in done]
                    if named := [each for each in events if isinstance(each, str) and each]:
                        event = named[0]
                        break
                    if process.returncode is not None and reading[0].done():
                        break
        except TimeoutError:
            event = "timeout"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            reading[3].cancel()
            await asyncio.wait(reading[1:3], timeout=_LINGER_SECONDS)
            for each in (ending, *reading):
                each.cancel()
            await asyncio.gather(ending, *reading, return_exceptions=True)
            code = await _wait_for_end(process)
        lines, text = errors.decode(errors="replace").splitlines(), errors.decode(errors="replace")
        folder = next(
            (line[len(token) + 1 :] for line in reversed(lines) if token and line.startswith(f"{token} ")), ""
        )
        has_started = bool(token) and token in lines
        return _Ended(event, code, has_started, folder if folder.startswith("/") else "", text)

    async def _read_output(self, process: asyncio.subprocess.Process, output: CapturedOutput | bytearray) -> str:
        """Read the output; return `output` if it exceeds the limit."""
        assert process.stdout is not None
        count = 0
        while data := await process.stdout.read(_CHUNK):
            count += len(data)
            if isinstance(output, bytearray):
                output += data
                if len(output) > 2 * self.limits.output_bytes + (16 << 20):
                    return "output"
                continue
            output.add(data)
            if count > self.limits.output_bytes:
                return "output"
        return ""

    async def _watch_disk(self) -> str:
        """Return `disk` once the files exceed the limit."""
        while True:
            await asyncio.sleep(_SCAN_SECONDS)
            if await self._exceeds_disk():
                return "disk"

    async def _exceeds_disk(self) -> bool:
        if self._place.upper:
            return await asyncio.to_thread(exceeds_limits, self._place.upper, self.limits)
        sized = await self._runtime.call("container", "inspect", "--size", "--format", "{{.SizeRw}}", self._name)
        with contextlib.suppress(ValueError):
            return int(sized.output) > self.limits.kernel_limits.folder
        return False

    async def _outcome(self, ended: _Ended, seconds: float, *, has_token: bool) -> Outcome:
        """Return the outcome of a command; end processes or the container if it requires that.

        Raises:
            InfrastructureError: The runtime has failed.
        """
        event = ended.event
        if event == "exit" and await self._exceeds_disk():
            event = "disk"
        if event == "disk":
            self._end()
            ending, text = describe_end("disk", None, self.limits)
            return Outcome(
                ending, error=f"{text}; the container and its files are gone, there is a new one", restarted=True
            )
        if event != "exit":
            ending, text = describe_end(event, seconds, self.limits)
            remains = await self._end_processes()
            return Outcome(ending, error=f"{text} with all processes of the container; {remains}", restarted=True)
        if has_token and not ended.started:
            return await self._not_started(ended)
        killed = self._count_kills()
        if killed > self._out_of_memory and ended.code in (_KILLED, 1, 2):
            self._out_of_memory = killed
            return Outcome(
                Ending.MEMORY,
                error=f"it used more than {self.limits.memory_mb} MiB and was ended",
                exit_code=ended.code,
            )
        self._out_of_memory = max(killed, self._out_of_memory)
        if ended.code == _OUT_OF_CPU:
            return Outcome(Ending.CPU, error="it exceeded its processor time and was ended", exit_code=ended.code)
        return Outcome(Ending.OK, exit_code=ended.code)

    async def _not_started(self, ended: _Ended) -> Outcome:
        """Return the outcome of a command that the container did not start.

        Raises:
            InfrastructureError: No code has run in the container, or no other container starts.
        """
        if not self._has_run_code:
            raise InfrastructureError(f"{self._runtime.program} exec: {find_last_line(ended.errors)}")
        state = await self._runtime.call("container", "inspect", "--format", "{{.State.Running}}", self._name)
        if state.output.strip() == b"true":
            remains = await self._end_processes()
            reason = find_last_line(ended.errors)
            text = f"the container could start no command ({reason}); all its processes were ended; {remains}"
            return Outcome(Ending.CRASHED, error=text, restarted=True)
        self._end()
        await self._prepare()  # raises if the runtime is at fault
        return Outcome(
            Ending.CRASHED, error="the container ended; it and its files are gone, there is a new one", restarted=True
        )

    async def _end_processes(self) -> str:
        """End all processes of the container and start it again; return whether its files are kept."""
        await self._runtime.call("kill", self._name)
        started = await self._runtime.call("start", self._name)
        if started.code == 0:
            with contextlib.suppress(InfrastructureError):
                self._set_place(await asyncio.to_thread(self._runtime.inspect_container, self._name))
                await self._open_ports()  # the container has a new loopback interface
                self._out_of_memory = self._count_kills()
                return "its files are kept"
        self._end()
        await self._prepare()
        return "its files are gone, there is a new one"

    def _count_kills(self) -> int:
        """Return how many processes the kernel ended because the container used more memory than its limit."""
        process = self._place.process
        if not process:
            return 0
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                if "memory" in controllers.split(","):
                    return _read_counter(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
                if not controllers and Path(f"/sys/fs/cgroup{path}/memory.events").exists():
                    return _read_counter(Path(f"/sys/fs/cgroup{path}/memory.events"))
        return 0

    # starting

    async def _prepare(self) -> None:
        """Start a container if there is none, and write the files.

        Raises:
            InfrastructureError: It does not start.
        """
        if self._name:
            return
        self._set_place(await self._factory.start(self.limits, self._snapshot))
        self._name, self._has_run_code = self._place.name, False
        try:
            self._folder = self._place.workdir
            await self._open_ports()
            self._out_of_memory = self._count_kills()
            if self.files and not self._snapshot:
                copied = await self._runtime.call(
                    "cp", "-", f"{self._name}:{self._place.workdir}", data=pack_files(self.files)
                )
                if copied.code != 0:
                    raise InfrastructureError(f"{self._runtime.program} cp: {copied.error_line}")
        except BaseException:
            self._end()
            raise

    async def _open_ports(self) -> None:
        """Serve the ports of the container.

        Raises:
            InfrastructureError: One cannot be opened.
        """
        self._close_ports()
        for port, serve in self.ports.items():
            listening = await asyncio.to_thread(listen_in_container, self._place.process, port)
            self._servers.append(await serve(listening))

    def _close_ports(self) -> None:
        for server in self._servers:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                server.close()
        self._servers.clear()

    def _set_place(self, place: ContainerPlace) -> None:
        self._place = replace(place, workdir=self._workdir or place.workdir)


def file_tool_program(function: str, arguments: Mapping[str, str | int]) -> tuple[str, bytes]:
    """Return a Python program that calls a function of `guest/files.py`, and its standard input."""
    source = package_files("whetstone.sandbox.guest").joinpath("files.py").read_text("utf-8")
    program = (
        f"{source}\nimport sys\nwanted = json.load(sys.stdin)\n"
        "try:\n    reply = {'value': globals()[wanted['function']](**wanted['arguments'])}\n"
        "except (FolderError, OSError, UnicodeError) as error:\n    reply = {'error': str(error)}\n"
        "print(json.dumps(reply))\n"
    )
    return program, json.dumps({"function": function, "arguments": arguments}).encode()


def read_file_tool_reply(outcome: Outcome, max_characters: int) -> Outcome:
    """Return the outcome of a call whose output is that of `file_tool_program`."""
    if outcome.ending is not Ending.OK:
        return outcome
    if outcome.exit_code == 127:
        return Outcome(Ending.ERROR, error="the container has no python3, which this tool requires")
    with contextlib.suppress(ValueError, AttributeError):
        reply = json.loads(outcome.output)
        if isinstance(value := reply.get("value"), str):
            return replace(outcome, output="", value=truncate_middle(value, max_characters)[0])
        if isinstance(error := reply.get("error"), str):
            return Outcome(Ending.ERROR, error=error, seconds=outcome.seconds)
    return Outcome(Ending.ERROR, error=f"no reply: {outcome.output[-500:]}", seconds=outcome.seconds)


async def _wait_for_end(process: asyncio.subprocess.Process) -> int:
    """Discard remaining output and return the exit code; asyncio reports the end only after the end of all pipes.

    Raises:
        InfrastructureError: The process does not end.
    """
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(_CHUNK):
                    pass
            return await process.wait()
    except TimeoutError:
        raise InfrastructureError("the command of the container runtime does not end") from None


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read_tail(process: asyncio.subprocess.Process, buffer: bytearray) -> None:
    """Read error output; keep its head and its tail."""
    assert process.stderr is not None
    while data := await process.stderr.read(_CHUNK):
        buffer += data
        if len(buffer) > 4 * _MARKER_BYTES:
            del buffer[_MARKER_BYTES:-_MARKER_BYTES]


def _read_counter(path: Path) -> int:
    words = dict(line.split() for line in path.read_text().splitlines())
    return int(words.get("oom_kill", 0))
