"""One episode's share of the sandbox: an interpreter and a folder, and calls that always come back.

The host's side. Three streams come from the other: packets of the supervisor (started, died, swept), frames of the
interpreter (answers), and what is printed. Each call ends with the first of: an answer, a death, too much output, or
the end of its time.

Easy to get wrong: the interpreter is not trusted. Its frames may be forged, endless or no JSON; they are checked, and
whatever they say is at most the text of this call.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson

from whetstone.errors import InfrastructureError
from whetstone.sandbox.guest.supervisor import NOT_STARTED
from whetstone.sandbox.guest.wire import LENGTH, PACKET_BYTES, frame, send_packet
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.printed import Printed
from whetstone.sandbox.protocol import Ending, Outcome
from whetstone.shortening import shortened

_START_SECONDS, _END_SECONDS = 30.0, 10.0
_LOOK_SECONDS = 0.2
_CLEARING: dict[str, dict[str, Any]] = {"ended": {"do": "end", "empty": True}, "swept": {"do": "sweep"}}
_MOST_FRAME_BYTES = 16 << 20
_CHUNK = 1 << 16
_CREDENTIALS = struct.Struct("3i")
_Happened = tuple[str, Any]


class Session:
    """Calls of one episode, one at a time.

    Args:
        open_session: Starts the other side, given its end of a socket.
        limits: What a call may use.
        persistent: Whether variables and files live from call to call; otherwise each has a new interpreter and an
            empty folder.
        seed: What the interpreter's random numbers begin with.
        place: Held while a call runs.
        admit: Told the number of its first process before there is another.
        out_of_memory: How many of its processes were ended for want of memory.
        watched: Whether its files are too many or too large, where nothing but looking at them tells; else None.
        closed: Told once when the session is over.
    """

    def __init__(
        self,
        open_session: Callable[[socket.socket], Awaitable[None]],
        *,
        limits: Limits,
        persistent: bool,
        seed: int,
        place: asyncio.Semaphore,
        admit: Callable[[int], None],
        out_of_memory: Callable[[], int],
        watched: Callable[[], bool] | None,
        closed: Callable[[Session], None],
    ) -> None:
        self.limits, self.persistent, self.seed = limits, persistent, seed
        self.process = 0
        """The supervisor's number among the machine's processes; 0 before it is known."""
        self._open_session, self._place, self._closed = open_session, place, closed
        self._admit, self._out_of_memory = admit, out_of_memory
        self._watched = watched
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._control: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._output = -1
        self._frames = bytearray()
        self._printed = Printed(limits.output_characters)
        self._waiting: asyncio.Future[_Happened] | None = None
        self._early: list[_Happened] = []
        self._number = 0
        self._killed_for_memory = 0
        self.files: dict[str, bytes] = {}
        """Contents by path, there when an interpreter is to find the folder as it was at first."""
        self._files_due = True
        self._owed = ""
        """What the supervisor has still to say of the last call's leftovers."""
        self._lost = ""
        """What the next call is told instead of being made."""
        self.swept = 0
        """Processes that calls left behind and that were ended."""

    async def python(self, code: str, *, wall_seconds: float | None = None) -> Outcome:
        """Run Python as a notebook does.

        Raises:
            InfrastructureError: The sandbox itself has failed; nothing is known of the code.
        """
        return await self._call("python", wall_seconds, code=code)

    async def shell(self, command: str, *, wall_seconds: float | None = None) -> Outcome:
        """Run a command of the shell; files and the current folder last, where the session is persistent."""
        return await self._call("shell", wall_seconds, command=command)

    async def folder(self, function: str, **arguments: str | int) -> Outcome:
        """What a function of `guest/folder.py` says, run where foreign code runs."""
        return await self._call("folder", None, function=function, arguments=arguments)

    async def read(self, path: str, *, most: int = 8 << 20) -> Outcome:
        """A file's bytes, in `data`."""
        outcome = await self._call("read", None, path=path, most=most)
        if outcome.ending is not Ending.OK:
            return outcome
        try:
            return replace(outcome, data=base64.b64decode(outcome.value or "", validate=True), value=None)
        except binascii.Error:
            return Outcome(Ending.ERROR, error="the file could not be read")

    async def write(self, path: str, data: bytes) -> Outcome:
        """Put a file there, with the folders it is in."""
        return await self._call("write", None, path=path, data=base64.b64encode(data).decode())

    async def start(self) -> None:
        """Be ready to run; a call starts what is not there by itself."""
        async with self._one_at_a_time:
            await self._ready()

    @property
    def open(self) -> bool:
        """Whether there is anything on the other side."""
        return self._control is not None

    def close(self) -> None:
        """End everything in it, at once; again does nothing, and a call begins anew."""
        self._drop_interpreter()
        if self._control is not None:
            self._deaf_to(self._control)
            self._control.close()  # the supervisor takes that as its end
            self._control, self._owed = None, ""
            self._closed(self)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(("gone", None))

    # a call

    async def _call(self, do: str, wall_seconds: float | None, **arguments: Any) -> Outcome:
        asked = time.perf_counter()
        async with self._one_at_a_time, self._place:
            try:
                await self._cleared()
                if self._lost:
                    outcome, self._lost = Outcome(Ending.CRASHED, error=self._lost, restarted=True), ""
                    return outcome
                await self._ready()
                queued = time.perf_counter() - asked
                outcome = await self._answered(do, arguments, wall_seconds or self.limits.wall_seconds)
                self._clear(outcome)
                return replace(outcome, queue_seconds=queued)
            except BaseException:
                self.close()  # cancelled or broken in the middle: nobody knows what it is doing
                raise

    async def _answered(self, do: str, arguments: dict[str, Any], wall_seconds: float) -> Outcome:
        self._number += 1
        self._drain()  # what the last call's leftovers have printed is nobody's
        self._early = [(happened, what) for happened, what in self._early if happened in ("died", "gone", "nonsense")]
        self._printed = Printed(self.limits.output_characters)
        assert self._channel is not None
        request = {"do": do, "number": self._number, "cpu_seconds": self.limits.cpu_seconds, **arguments}
        if self._files_due and self.files:
            request["files"] = {path: base64.b64encode(data).decode() for path, data in self.files.items()}
        self._files_due = not self.persistent
        began = time.perf_counter()
        watching = self._loop.create_task(self._watch()) if self._watched is not None else None
        try:
            async with asyncio.timeout(wall_seconds):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death will be told
                    await self._loop.sock_sendall(self._channel, frame(request))
                happened, what = await self._next()
        except TimeoutError:
            happened, what = "timeout", wall_seconds
        finally:
            if watching is not None:
                watching.cancel()
        outcome = await self._settled(happened, what)
        self._drain()
        value, most = outcome.value, self.limits.output_characters
        return replace(
            outcome,
            output=self._printed.text(),
            value=value if value is None or do == "read" else shortened(value, most)[0],
            error=outcome.error and shortened(outcome.error, most)[0],
            seconds=time.perf_counter() - began,
        )

    async def _watch(self) -> None:
        assert self._watched is not None
        while True:
            if await asyncio.to_thread(self._watched):
                return self._tell("disk", None)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _settled(self, happened: str, what: Any) -> Outcome:
        """What an event means; whatever is not an answer costs the interpreter."""
        if happened == "answer":
            outcome = _outcome(what)
            if outcome is not None:
                return outcome
            happened = "nonsense"
        if happened == "gone":
            raise InfrastructureError("the sandbox ended in the middle of a call")
        if happened == "died" and what == NOT_STARTED:
            raise InfrastructureError("there are too many processes to start an interpreter")
        if happened != "died":
            await self._end_all()
        self._drop_interpreter(keep_output=True)
        restarted = "the interpreter was started again and its variables are gone" if self.persistent else ""
        ending, words = _why_it_ended(happened, what, self.limits)
        if (killed := self._out_of_memory()) > self._killed_for_memory:
            self._killed_for_memory = killed
            if happened == "died":
                ending, words = Ending.MEMORY, f"it used more than {self.limits.memory_mb} MiB and was ended"
        return Outcome(ending, error="; ".join(filter(None, (words, restarted))), restarted=True)

    async def settled(self) -> int:
        """Wait until what calls left behind is ended; how many processes that were, since the session began."""
        async with self._one_at_a_time:
            await self._cleared()
            return self.swept

    def _clear(self, outcome: Outcome) -> None:
        """Have what a call left behind ended, while the caller thinks about its answer."""
        if self._control is None:
            return
        if not self.persistent:
            self._owed = "ended"
        elif outcome.ending.keeps_state:
            self._owed = "swept"
        if self._owed:
            try:
                send_packet(self._control, _CLEARING[self._owed])
            except OSError:
                raise InfrastructureError("the sandbox is gone") from None

    async def _cleared(self) -> None:
        """Until that is done."""
        owed, self._owed = self._owed, ""
        if not owed or self._control is None:
            return
        said = await self._told(owed)
        if owed == "ended":
            self._drop_interpreter()
            if said["clean"] is not True:
                self.close()
            return
        self.swept += int(said["swept"])
        if said["survived"] is not True:
            self._drop_interpreter()
            self._lost = (
                "what an earlier call had started could not be ended without the interpreter; it was started again and "
                "its variables are gone"
            )

    async def _end_all(self) -> None:
        assert self._control is not None
        with contextlib.suppress(OSError):  # what is gone does not answer, either
            send_packet(self._control, {"do": "end", "empty": False})
        await self._told("ended")

    async def _told(self, answer: str) -> dict[str, Any]:
        """What the supervisor says to a question; deaths it tells of meanwhile are expected.

        Raises:
            InfrastructureError: It does not answer.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while True:
                    happened, what = await self._next()
                    if happened == "gone":
                        break
                    if happened == "told" and answer in what:
                        return dict(what)
        self.kill()
        raise InfrastructureError("the sandbox did not answer")

    def kill(self) -> None:
        """End the supervisor from outside, and with it all it has started; for one that does not answer."""
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process, signal.SIGKILL)

    # starting

    async def _ready(self) -> None:
        if self._control is None:
            await self._start_session()
        if self._channel is None:
            self._start_interpreter()

    async def _start_session(self) -> None:
        for _ in range(2):  # a server that has just died may still have taken what was sent to it
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._control, self._early, self.process, self._killed_for_memory = ours, [], 0, 0
            self._loop.add_reader(ours, self._on_packet)
            with theirs:
                await self._open_session(theirs)
            try:
                async with asyncio.timeout(_START_SECONDS):
                    happened, _ = await self._next()
            except TimeoutError:
                happened = "timeout"
            if happened == "told":
                self._files_due = True
                return self._admit(self.process)
            self.close()
            await asyncio.sleep(_LOOK_SECONDS)
        raise InfrastructureError("the sandbox could not start a session")

    def _start_interpreter(self) -> None:
        """It starts while its first request is under way."""
        assert self._control is not None
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._output, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(end, True)
        try:
            send_packet(self._control, {"do": "start", "seed": self.seed}, [theirs.fileno(), end])
        except OSError:
            raise InfrastructureError("the sandbox is gone") from None
        finally:
            theirs.close()
            os.close(end)
        self._frames.clear()
        self._loop.add_reader(self._channel, self._on_frame)
        self._loop.add_reader(self._output, self._on_output)

    def _drop_interpreter(self, *, keep_output: bool = False) -> None:
        if self._channel is not None:
            self._deaf_to(self._channel)
            self._channel.close()
            self._channel = None
        if self._output >= 0:
            if keep_output:
                self._drain()
            self._deaf_to(self._output)
            os.close(self._output)
            self._output = -1

    # what comes from the other side

    async def _next(self) -> _Happened:
        if self._early:
            return self._early.pop(0)
        self._waiting = self._loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def _tell(self, happened: str, what: Any) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((happened, what))
        else:
            self._early.append((happened, what))

    def _on_packet(self) -> None:
        assert self._control is not None
        try:
            data, ancillary, _, _ = self._control.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._deaf_to(self._control)
            self._tell("gone", None)
            return
        message = orjson.loads(data)
        if "hello" in message:
            for level, kind, value in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    self.process = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])[0]
        if "died" in message:
            self._tell("died", message["died"])
        else:
            self._tell("told", message)

    def _on_frame(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._deaf_to(self._channel)  # the supervisor says what became of it
            return
        self._frames += data
        while len(self._frames) >= LENGTH.size:
            size = LENGTH.unpack_from(self._frames)[0]
            if size > _MOST_FRAME_BYTES:
                self._deaf_to(self._channel)
                self._tell("nonsense", None)
                return
            if len(self._frames) < LENGTH.size + size:
                return
            body = bytes(self._frames[LENGTH.size : LENGTH.size + size])
            del self._frames[: LENGTH.size + size]
            self._hear(body)

    def _hear(self, body: bytes) -> None:
        try:
            answer = orjson.loads(body)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and answer.get("number") == self._number and self._waiting is not None:
            self._tell("answer", answer)
        elif self._channel is not None:  # an answer to a question nobody asked: only foreign code can have sent it
            self._deaf_to(self._channel)
            self._frames.clear()
            self._tell("nonsense", None)

    def _on_output(self) -> None:
        if self._take_output() == 0:
            self._deaf_to(self._output)
        elif self._printed.bytes > self.limits.output_bytes:
            self._deaf_to(self._output)
            self._tell("output", None)

    def _deaf_to(self, source: socket.socket | int) -> None:
        """Listen no more, where there is still a loop to listen with."""
        if not self._loop.is_closed():
            self._loop.remove_reader(source)

    def _drain(self) -> None:
        """What was printed before the answer is in the pipe by now."""
        while self._output >= 0 and (self._take_output() or 0) > 0:
            if self._printed.bytes > 2 * self.limits.output_bytes:
                return

    def _take_output(self) -> int | None:
        """How many bytes came; 0 at the end, None where there are none yet."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        self._printed.add(data)
        return len(data)


def _outcome(answer: dict[str, Any]) -> Outcome | None:
    """An answer that is one; None for anything else."""
    value, error, kind = answer.get("value", answer.get("data")), answer.get("error"), answer.get("kind", "error")
    images, exit_code = answer.get("images", []), answer.get("exit_code")
    if not (isinstance(value, str | None) and isinstance(error, str | None) and isinstance(exit_code, int | None)):
        return None
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        return None
    try:
        pictures = tuple(base64.b64decode(image, validate=True) for image in images)
    except binascii.Error:
        return None
    cpu = answer.get("cpu")
    ending = Ending.OK if error is None else Ending.MEMORY if kind == "memory" else Ending.ERROR
    return Outcome(
        ending,
        value=value,
        error=error,
        images=pictures,
        exit_code=exit_code,
        cpu_seconds=float(cpu) if isinstance(cpu, int | float) else 0.0,
    )


def _why_it_ended(happened: str, what: Any, limits: Limits) -> tuple[Ending, str]:
    if happened == "timeout":
        return Ending.TIMEOUT, f"it ran longer than {what:g} s and was ended"
    if happened == "output":
        return Ending.OUTPUT, f"it printed more than {limits.output_bytes} bytes and was ended"
    if happened == "disk":
        return Ending.DISK, f"its files were more than {limits.folder_mb} MiB or {limits.files} and it was ended"
    if happened == "nonsense":
        return Ending.CRASHED, "the interpreter answered nonsense and was ended"
    if what == -signal.SIGXCPU:
        return Ending.CPU, f"it computed longer than {limits.cpu_seconds:g} s and was ended"
    if isinstance(what, int) and what < 0:
        with contextlib.suppress(ValueError):
            return Ending.CRASHED, f"the interpreter was ended by {signal.Signals(-what).name}"
    return Ending.CRASHED, f"the interpreter ended itself with exit code {what}"
