"""Session of a sandbox: an interpreter and a folder for one episode, and calls that always return.

This is the host side. It reads three streams: packets of the supervisor (started, died, swept), frames of the
interpreter (replies), and the printed output. Each call ends with the first of: a reply, a death, too much output, or a
timeout.

Note:
    The interpreter is untrusted. Its frames may be forged, endless or not JSON; they are checked, and their content is
    at most the text of this call. A jail in which untrusted code has run is untrusted, too. If its supervisor dies,
    hangs or sends malformed packets, the code caused it, and the call ends as crashed. The sandbox itself has failed
    only if the server of all jails has ended, or a jail fails in which no code has run.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import IO, Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox.archive_transfer import ArchiveTools, copy_untrusted
from whetstone.sandbox.call_outcomes import describe_end, parse_guest_object, parse_outcome, read_count
from whetstone.sandbox.captured_output import CapturedOutput
from whetstone.sandbox.guest.supervisor import NOT_STARTED
from whetstone.sandbox.guest.wire import LENGTH, PACKET_BYTES, frame_message, send_packet
from whetstone.sandbox.isolation import WORK, temporary_folder
from whetstone.sandbox.jail import Jail
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import CodeTools, Ending, Outcome, export_variables
from whetstone.truncate_text import truncate_middle

_END_SECONDS = 10.0
_COPY_SECONDS = 120.0
_SCAN_SECONDS = 0.2
_MAX_FRAME_BYTES = 16 << 20
_MAX_QUEUED = 256
_CHUNK = 1 << 16
_Event = tuple[str, Any]
_LOST_TEXT = "it and all that belonged to it, files too, are gone; there is a new one"


class _JailLost(Exception):
    """Internal signal that a jail no longer responds as requested.

    The text completes "the sandbox …".
    """


class Session:
    """Sandbox session of one episode: an isolated interpreter and a folder, with one call at a time.

    `Sandbox.session` creates it. It starts at its first call and belongs to the event loop in which it was created.

    Args:
        take: Function that returns a jail with these limits.
        give_back: Function that receives (session, jail, whether another session may use the jail) at the end.
        limits: Limits of a call.
        persistent: Whether variables and files are kept between calls; otherwise each call has a new interpreter and an
            empty folder.
        seed: Seed of the interpreter's random numbers.
        place: Semaphore that a running call holds, shared by all sessions.
        watched: Whether the size of its files must be scanned during a call, because nothing else limits it.
    """

    def __init__(
        self,
        take: Callable[[Limits], Awaitable[Jail]],
        give_back: Callable[[Session, Jail, bool], None],
        *,
        limits: Limits,
        persistent: bool,
        seed: int,
        place: asyncio.Semaphore,
        watched: bool,
    ) -> None:
        self.limits, self.persistent, self.seed = limits, persistent, seed
        self.files: dict[str, bytes] = {}
        """Contents by path that are written into the folder when an interpreter starts in an empty folder."""
        self.swept = 0
        """Number of processes that calls had left running and that were killed."""
        self._take, self._give_back, self._semaphore, self._is_scanned = take, give_back, place, watched
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._jail: Jail | None = None
        self._channel: socket.socket | None = None
        self._output = -1
        self._frames = bytearray()
        self._captured = CapturedOutput(limits.output_characters)
        self._waiting: asyncio.Future[_Event] | None = None
        self._queued: list[_Event] = []
        self._is_sending = False
        self._number = 0
        self._killed_for_memory = 0
        self._has_run_code = False
        """Whether a call has run code in the current jail."""
        self._files_missing = True
        self._pending_report = ""
        """Key of the supervisor's pending report on leftovers of the last call: `swept`, `ended`, or empty."""
        self._lost_error = ""
        """Error text that the next call returns without running; empty in most cases."""

    async def python(self, code: str, *, wall_seconds: float | None = None, tools: CodeTools | None = None) -> Outcome:
        """Run Python code like a notebook cell: its output, and the value of the last expression.

        Args:
            code: Python code.
            wall_seconds: Time limit in seconds, without the time of the tools; None: that of the session's limits.
            tools: Tools that the code can call, one at a time.

        Raises:
            InfrastructureError: If the sandbox itself has failed, so that nothing is known about the code.
        """
        if tools is None:
            return await self._call("python", wall_seconds, code=code)
        return await self._call("python", wall_seconds, tools, code=code, tools=dict(tools.parameter_names))

    async def shell(
        self,
        command: str,
        *,
        wall_seconds: float | None = None,
        variables: Mapping[str, str] | None = None,
        user: str = "",
    ) -> Outcome:
        """Run a shell command with `sh`.

        Files and the current folder are kept if the session is persistent.

        Args:
            command: Shell command, possibly with several lines.
            wall_seconds: Time limit in seconds; None: that of the session's limits.
            variables: Environment variables of the command.
            user: Without effect: the session has one user.

        Raises:
            InfrastructureError: If the sandbox itself has failed.
        """
        cpu_seconds = max(self.limits.cpu_seconds, wall_seconds or 0)
        exported = export_variables(variables) + command
        return await self._call("shell", wall_seconds, command=exported, cpu_seconds=cpu_seconds)

    async def call_file_tool(self, function: str, **arguments: str | int) -> Outcome:
        """Call a function of `guest/files.py` inside the sandbox; its text is `Outcome.value`.

        Args:
            function: Name of the function, such as `view_path`.
            arguments: Its arguments.

        Raises:
            InfrastructureError: If the sandbox itself has failed.
        """
        return await self._call("folder", None, function=function, arguments=arguments)

    async def read(self, path: str, *, max_bytes: int = 8 << 20) -> Outcome:
        """Read a file of the session; the bytes are in `Outcome.data`.

        Args:
            path: Path of the file, relative to the folder of the session.
            max_bytes: Maximum size; a larger file is an error of the call.

        Raises:
            InfrastructureError: If the sandbox itself has failed.
        """
        outcome = await self._call("read", None, path=path, most=max_bytes)
        if outcome.ending is not Ending.OK:
            return outcome
        try:
            return replace(outcome, data=base64.b64decode(outcome.value or "", validate=True), value=None)
        except ValueError:
            return Outcome(Ending.ERROR, error="the file could not be read")

    async def write(self, path: str, data: bytes) -> Outcome:
        """Write a file into the session's folder and create its parent folders.

        Raises:
            InfrastructureError: If the sandbox itself has failed.
        """
        return await self._call("write", None, path=path, data=base64.b64encode(data).decode())

    async def download_archive(self, folder: str, archive: IO[bytes]) -> Outcome:
        """Write the files, folders and links of a folder to a file of this machine as a tar archive.

        Raises:
            InfrastructureError: If the sandbox itself has failed.
        """
        for _ in range(2):  # again if an earlier call has ended the interpreter
            with tempfile.TemporaryFile() as packed:
                outcome = await self._transfer("pack", folder, packed)
                if outcome.ending is Ending.OK:
                    packed.seek(0)
                    return await asyncio.to_thread(copy_untrusted, packed, archive, self.limits)
            if not outcome.restarted:
                break
        return outcome

    async def upload_archive(self, archive: IO[bytes], folder: str) -> Outcome:
        """Replace the contents of a folder by those of a tar archive, which is read from its start.

        Raises:
            InfrastructureError: If the sandbox itself has failed.
        """
        archive.seek(0)
        return await self._transfer("unpack", folder, archive)

    async def _transfer(self, do: str, folder: str, archive: IO[bytes]) -> Outcome:
        tools = ArchiveTools(archive, self.limits)
        names = {name: list(parameters) for name, parameters in tools.parameter_names.items()}
        return await self._call(
            do,
            _COPY_SECONDS,
            tools,
            folder=folder,
            tools=names,
            cpu_seconds=max(self.limits.cpu_seconds, _COPY_SECONDS),
        )

    @property
    def working_folder(self) -> str:
        """Folder in which commands start; that of a session without a separate file system is known once it started."""
        return (self._jail.folder if self._jail is not None else "") or WORK

    @property
    def scratch_folder(self) -> str:
        """Writable folder outside of the working folder; the working folder itself if there is no other."""
        return self.working_folder if self._is_scanned else temporary_folder()

    async def start(self) -> None:
        """Start the session in advance; otherwise its first call starts it.

        Raises:
            InfrastructureError: If no jail can be started.
        """
        async with self._lock:
            await self._prepare()

    @property
    def is_open(self) -> bool:
        """Whether the session has a jail: it has started and was not closed."""
        return self._jail is not None

    @property
    def process_id(self) -> int:
        """Process id of the jail's first process on this machine; 0 if the session has no jail."""
        return self._jail.process if self._jail is not None else 0

    def close(self) -> None:
        """End all processes of the session immediately; a second call has no effect.

        A later call of the session starts a new jail. If no call is running, another session may use the jail as soon
        as it is empty.
        """
        self._end(clean=not self._lock.locked())

    def _end(self, *, clean: bool) -> None:
        self._drop_interpreter()
        jail, self._jail, self._pending_report, self._lost_error = self._jail, None, "", ""
        if jail is not None:
            self._stop_reading(jail.control)
            self._give_back(self, jail, clean)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(("gone", None))

    # a call

    async def _call(
        self, do: str, wall_seconds: float | None, host_tools: CodeTools | None = None, **arguments: Any
    ) -> Outcome:
        requested = time.perf_counter()
        async with self._lock, self._semaphore:
            try:
                if (lost := await self._check_leftovers()) is not None:
                    return lost
                await self._prepare()
                queued = time.perf_counter() - requested
                seconds = wall_seconds or self.limits.wall_seconds
                outcome = await self._run_call(do, arguments, seconds, host_tools)
                return replace(outcome, queue_seconds=queued)
            except BaseException:
                self._end(clean=False)  # cancelled or failed during a call: the state of the jail is unknown
                raise

    async def _check_leftovers(self) -> Outcome | None:
        """Return the outcome of a call that cannot run because leftovers of an earlier call ended its interpreter.

        Else None.
        """
        try:
            await self._wait_for_cleanup()
        except _JailLost as lost:
            outcome = await self._crash_outcome(lost)
            return outcome if self.persistent else None  # nothing was to be kept
        if not self._lost_error:
            return None
        outcome, self._lost_error = Outcome(Ending.CRASHED, error=self._lost_error, restarted=True), ""
        return outcome

    async def _crash_outcome(self, lost: _JailLost) -> Outcome:
        """Return the outcome of a call that destroyed its jail.

        Raises:
            InfrastructureError: If the code of the session cannot have caused it.
        """
        jail = self._jail
        if jail is None:
            raise InfrastructureError("sandbox: the session was closed while a call ran in it")
        out_of_memory = jail.out_of_memory > self._killed_for_memory
        is_at_fault = self._has_run_code and not await jail.has_server_ended()
        printed = self._captured.text()
        self._end(clean=False)
        if not is_at_fault:
            raise InfrastructureError(f"sandbox: the session {lost}, and its code cannot be the cause")
        ending = Ending.MEMORY if out_of_memory else Ending.CRASHED
        return Outcome(ending, output=printed, error=f"the session {lost}: {_LOST_TEXT}", restarted=True)

    async def _run_call(
        self, do: str, arguments: dict[str, Any], wall_seconds: float, tools: CodeTools | None
    ) -> Outcome:
        self._number += 1
        self._drain()  # discard output of the last call's leftovers
        self._queued = [(event, detail) for event, detail in self._queued if event in ("died", "gone", "nonsense")]
        self._captured = CapturedOutput(self.limits.output_characters)
        assert self._channel is not None
        request = {"do": do, "number": self._number, "cpu_seconds": self.limits.cpu_seconds, **arguments}
        if self._files_missing and self.files:
            request["files"] = {path: base64.b64encode(data).decode() for path, data in self.files.items()}
        self._files_missing = not self.persistent
        started = time.perf_counter()
        watcher = self._loop.create_task(self._scan_folder()) if self._is_scanned else None
        try:
            async with asyncio.timeout(wall_seconds) as limit:
                await self._send(request)
                event, detail = await self._next_event()
                while event == "told" or (event == "answer" and tools is not None and "tool" in detail):
                    if tools is not None and event == "answer":  # otherwise a late reply to an earlier request
                        await self._call_tool(tools, detail, limit)
                    event, detail = await self._next_event()
        except TimeoutError:
            event, detail = "timeout", wall_seconds
        finally:
            if watcher is not None:
                watcher.cancel()
        try:
            outcome = await self._resolve_event(event, detail)
            self._request_cleanup()
        except _JailLost as lost:
            outcome = await self._crash_outcome(lost)
        self._drain()
        value, max_characters = outcome.value, self.limits.output_characters
        return replace(
            outcome,
            output=outcome.output or self._captured.text(),
            value=value if value is None or do == "read" else truncate_middle(value, max_characters)[0],
            error=outcome.error and truncate_middle(outcome.error, max_characters)[0],
            seconds=time.perf_counter() - started,
        )

    async def _send(self, message: dict[str, Any]) -> None:
        if self._channel is None:
            return self._notify("gone", None)
        self._is_sending = True  # the guest may reply before this task continues
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the supervisor reports its death
                await self._loop.sock_sendall(self._channel, frame_message(message))
        finally:
            self._is_sending = False

    async def _call_tool(self, tools: CodeTools, request: dict[str, Any], limit: asyncio.Timeout) -> None:
        """Call a tool for the running code; its time does not count."""
        started, end = self._loop.time(), limit.when()
        limit.reschedule(None)
        reply = await tools.call_tool(request["tool"], request.get("arguments"))
        limit.reschedule(None if end is None else end + self._loop.time() - started)
        await self._send(dict(reply))

    async def _scan_folder(self) -> None:
        assert self._jail is not None
        jail = self._jail
        while True:
            if await asyncio.to_thread(lambda: jail.exceeds_limits):
                return self._notify("disk", None)
            await asyncio.sleep(_SCAN_SECONDS)

    async def _resolve_event(self, event: str, detail: Any) -> Outcome:
        """Return the outcome for the event that ended a call.

        Every event except a reply ends the interpreter.

        Raises:
            _JailLost: If the event also ends the jail.
        """
        if event == "died" and detail == NOT_STARTED:
            raise _JailLost("has too many processes to start an interpreter")
        self._has_run_code = True
        if event == "answer":
            outcome = parse_outcome(detail)
            if outcome is not None:
                return outcome
            event = "nonsense"
        if event == "gone":
            raise _JailLost("ended in the middle of a call")
        if event != "died":
            await self._end_processes()
        self._drop_interpreter(keep_output=True)
        restarted = "the interpreter was started again and its variables are gone" if self.persistent else ""
        ending, text = describe_end(event, detail, self.limits)
        if self._jail is not None and (num_killed := self._jail.out_of_memory) > self._killed_for_memory:
            self._killed_for_memory = num_killed
            if event == "died":
                ending, text = Ending.MEMORY, f"it used more than {self.limits.memory_mb} MiB and was ended"
        return Outcome(ending, error="; ".join(filter(None, (text, restarted))), restarted=True)

    async def wait_for_cleanup(self) -> int:
        """Wait until leftover processes of calls are ended.

        Returns:
            Number of leftover processes since the start of the session.
        """
        async with self._lock:
            await self._wait_for_cleanup()
            return self.swept

    def _request_cleanup(self) -> None:
        """Request that leftovers of the call are ended, while the caller already processes the reply."""
        if self._jail is None:
            return
        if not self.persistent:
            self._pending_report = "ended"
            try:
                self._jail.request_cleanup()
            except InfrastructureError:
                raise _JailLost("is gone") from None
        elif self._channel is not None:  # otherwise everything was ended with the interpreter
            self._pending_report = "swept"
            try:
                send_packet(self._jail.control, {"do": "sweep"})
            except OSError:
                raise _JailLost("is gone") from None

    async def _wait_for_cleanup(self) -> None:
        """Wait for the report on the requested clean-up, and handle an interpreter or jail that did not survive it."""
        owed, self._pending_report = self._pending_report, ""
        if not owed or self._jail is None:
            return
        reply = await self._receive_reply(owed, self._jail.num_cleanups if owed == "ended" else None)
        if owed == "ended":
            self._drop_interpreter()
            self._jail.is_used = False
            if reply.get("clean") is not True:
                self._end(clean=False)
            return
        self.swept += read_count(reply["swept"])
        if reply.get("survived") is not True:
            self._drop_interpreter()
            self._lost_error = (
                "what an earlier call had started could not be ended without the interpreter; it was started again and "
                "its variables are gone"
            )

    async def _end_processes(self) -> None:
        assert self._jail is not None
        with contextlib.suppress(OSError):  # the reply below is then missing, too
            send_packet(self._jail.control, {"do": "end", "empty": False, "number": 0})
        await self._receive_reply("ended", 0)

    async def _receive_reply(self, key: str, number: int | None = None) -> dict[str, Any]:
        """Wait for the supervisor's reply with this key and number.

        Reports of ended processes are skipped.

        Raises:
            _JailLost: If the supervisor does not reply in time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while True:
                    event, detail = await self._next_event()
                    if event == "gone":
                        break
                    if event == "told" and key in detail and number in (None, detail[key]):
                        return dict(detail)
        if self._jail is not None:
            self._jail.kill()
        raise _JailLost("does not answer")

    # starting

    async def _prepare(self) -> None:
        while self._jail is None:
            jail = self._jail = await self._take(self.limits)
            self._queued, self._killed_for_memory, self._files_missing = [], jail.out_of_memory, True
            self._has_run_code = False
            self._loop.add_reader(jail.control, self._on_packet)
            if jail.is_used:
                self._pending_report = "ended"
                try:
                    await self._wait_for_cleanup()  # a jail that is not clean is discarded
                except _JailLost:  # an earlier session destroyed it
                    self._end(clean=False)
        if self._channel is None:
            self._start_interpreter()

    def _start_interpreter(self) -> None:
        """Request an interpreter from the supervisor.

        The first call may be sent before it is ready.

        Raises:
            InfrastructureError: If this process cannot open the sockets.
        """
        assert self._jail is not None
        try:
            self._channel, guest_end = socket.socketpair()
            self._channel.setblocking(False)
            self._output, output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:  # limits of this process
            raise InfrastructureError(f"sandbox: no interpreter can be started: {error.strerror}") from None
        os.set_blocking(output_end, True)
        try:
            with contextlib.suppress(OSError):  # if it has ended, the next event is its end
                send_packet(self._jail.control, {"do": "start", "seed": self.seed}, [guest_end.fileno(), output_end])
        finally:
            guest_end.close()
            os.close(output_end)
        self._frames.clear()
        self._loop.add_reader(self._channel, self._on_frame)
        self._loop.add_reader(self._output, self._on_output)

    def _drop_interpreter(self, *, keep_output: bool = False) -> None:
        if self._channel is not None:
            self._stop_reading(self._channel)
            self._channel.close()
            self._channel = None
        if self._output >= 0:
            if keep_output:
                self._drain()
            self._stop_reading(self._output)
            os.close(self._output)
            self._output = -1

    # data from the guest

    async def _next_event(self) -> _Event:
        if self._queued:
            return self._queued.pop(0)
        self._waiting = self._loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def _notify(self, event: str, detail: Any) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((event, detail))
        else:
            self._queued.append((event, detail))

    def _on_packet(self) -> None:
        assert self._jail is not None
        try:
            data = self._jail.control.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._stop_reading(self._jail.control)
            self._notify("gone", None)
            return
        message = parse_guest_object(data)
        if message is None or len(self._queued) > _MAX_QUEUED:
            self._stop_reading(self._jail.control)  # a supervisor that sends malformed packets is not used any more
            self._notify("gone", None)
        elif "died" in message:
            self._notify("died", message["died"])
        else:
            self._notify("told", message)

    def _on_frame(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._stop_reading(self._channel)  # the supervisor reports the cause
            return
        self._frames += data
        while len(self._frames) >= LENGTH.size:
            size = LENGTH.unpack_from(self._frames)[0]
            if size > _MAX_FRAME_BYTES:
                self._stop_reading(self._channel)
                self._notify("nonsense", None)
                return
            if len(self._frames) < LENGTH.size + size:
                return
            body = bytes(self._frames[LENGTH.size : LENGTH.size + size])
            del self._frames[: LENGTH.size + size]
            self._on_reply(body)

    def _on_reply(self, body: bytes) -> None:
        reply = parse_guest_object(body)
        is_expected = self._waiting is not None or self._is_sending
        if reply is not None and reply.get("number") == self._number and is_expected:
            self._notify("answer", reply)
        elif self._channel is not None:  # a reply without a request: only untrusted code can have sent it
            self._stop_reading(self._channel)
            self._frames.clear()
            self._notify("nonsense", None)

    def _on_output(self) -> None:
        if self._read_output() == 0:
            self._stop_reading(self._output)
        elif self._captured.bytes > self.limits.output_bytes:
            self._stop_reading(self._output)
            self._notify("output", None)

    def _stop_reading(self, source: socket.socket | int) -> None:
        """Stop watching a socket or descriptor, unless the event loop is closed."""
        if not self._loop.is_closed():
            self._loop.remove_reader(source)

    def _drain(self) -> None:
        """Read all output that was printed before the reply, up to twice the limit."""
        while self._output >= 0 and (self._read_output() or 0) > 0:
            if self._captured.bytes > 2 * self.limits.output_bytes:
                return

    def _read_output(self) -> int | None:
        """Read available output.

        Return the number of bytes, 0 at the end of the stream, None if there is none yet.
        """
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        self._captured.add(data)
        return len(data)
