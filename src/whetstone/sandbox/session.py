"""One episode's share of the sandbox: an interpreter and a folder, and calls that always come back.

The host's side. Three streams come from the other: packets of the supervisor (started, died, swept), frames of the
interpreter (answers), and what is printed. Each call ends with the first of: an answer, a death, too much output, or
the end of its time.

Easy to get wrong: the interpreter is not trusted. Its frames may be forged, endless or no JSON; they are checked, and
whatever they say is at most the text of this call. Nor is a world in which foreign code has run: where it goes to
pieces, its supervisor dead, dumb or talking nonsense, that is what the code did, a crash like any other. The sandbox
itself has failed where the server of all worlds is gone, or a world falls apart that nobody has lived in.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox.captured_output import Printed
from whetstone.sandbox.guest.supervisor import NOT_STARTED
from whetstone.sandbox.guest.wire import LENGTH, PACKET_BYTES, frame, send_packet
from whetstone.sandbox.heard import count_of, object_of, outcome_of, why_it_ended
from whetstone.sandbox.jail import Jail
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import Ending, Outcome
from whetstone.shortening import shortened

_END_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_MOST_FRAME_BYTES = 16 << 20
_MOST_EARLY = 256
_CHUNK = 1 << 16
_Happened = tuple[str, Any]
_ALL_GONE = "it and all that belonged to it, files too, are gone; there is a new one"


class _WorldLost(Exception):
    """A world does no more as it is told; the text says in what way."""


class Session:
    """Calls of one episode, one at a time.

    Args:
        take: Gives a world to live in.
        give_back: Takes it again, and whether another session may have it.
        limits: What a call may use.
        persistent: Whether variables and files live from call to call; otherwise each has a new interpreter and an
            empty folder.
        seed: What the interpreter's random numbers begin with.
        place: Held while a call runs.
        watched: Whether its files have to be looked at, because nothing else bounds them.
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
        """Contents by path, there when an interpreter is to find the folder as it was at first."""
        self.swept = 0
        """Processes that calls left behind and that were ended."""
        self._take, self._give_back, self._place, self._watched = take, give_back, place, watched
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._jail: Jail | None = None
        self._channel: socket.socket | None = None
        self._output = -1
        self._frames = bytearray()
        self._printed = Printed(limits.output_characters)
        self._waiting: asyncio.Future[_Happened] | None = None
        self._early: list[_Happened] = []
        self._number = 0
        self._killed_for_memory = 0
        self._lived = False
        """Whether code of this session has run in its present world."""
        self._files_due = True
        self._owed = ""
        """What the supervisor has still to say of the last call's leftovers."""
        self._lost = ""
        """What the next call is told instead of being made."""

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
        except ValueError:
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
        return self._jail is not None

    @property
    def process(self) -> int:
        """The number of its first process among the machine's; 0 where it has none."""
        return self._jail.process if self._jail is not None else 0

    def close(self) -> None:
        """End everything in it, at once; again does nothing, and a call begins anew.

        Its world is given to another session when nothing is left in it, where no call is under way.
        """
        self._end(clean=not self._one_at_a_time.locked())

    def _end(self, *, clean: bool) -> None:
        self._drop_interpreter()
        jail, self._jail, self._owed, self._lost = self._jail, None, "", ""
        if jail is not None:
            self._deaf_to(jail.control)
            self._give_back(self, jail, clean)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(("gone", None))

    # a call

    async def _call(self, do: str, wall_seconds: float | None, **arguments: Any) -> Outcome:
        asked = time.perf_counter()
        async with self._one_at_a_time, self._place:
            try:
                if (lost := await self._lost_between()) is not None:
                    return lost
                await self._ready()
                queued = time.perf_counter() - asked
                outcome = await self._answered(do, arguments, wall_seconds or self.limits.wall_seconds)
                return replace(outcome, queue_seconds=queued)
            except BaseException:
                self._end(clean=False)  # cancelled or broken in the middle: nobody knows what it is doing
                raise

    async def _lost_between(self) -> Outcome | None:
        """What a call is told instead of being made, where what an earlier one had left behind took its interpreter."""
        try:
            await self._cleared()
        except _WorldLost as lost:
            outcome = await self._crashed(lost)
            return outcome if self.persistent else None  # nothing was to last
        if not self._lost:
            return None
        outcome, self._lost = Outcome(Ending.CRASHED, error=self._lost, restarted=True), ""
        return outcome

    async def _crashed(self, lost: _WorldLost) -> Outcome:
        """A call that cost the world it was made in.

        Raises:
            InfrastructureError: It was not the call that did.
        """
        jail = self._jail
        if jail is None:
            raise InfrastructureError("the session was closed in the middle of a call")
        out_of_memory = jail.out_of_memory > self._killed_for_memory
        at_fault = self._lived and not await jail.server_is_gone()
        printed = self._printed.text()
        self._end(clean=False)
        if not at_fault:
            raise InfrastructureError(f"the sandbox {lost}")
        ending = Ending.MEMORY if out_of_memory else Ending.CRASHED
        return Outcome(ending, output=printed, error=f"the session {lost}: {_ALL_GONE}", restarted=True)

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
        watching = self._loop.create_task(self._watch()) if self._watched else None
        try:
            async with asyncio.timeout(wall_seconds):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death will be told
                    await self._loop.sock_sendall(self._channel, frame(request))
                happened, what = await self._next()
                while happened == "told":  # of what was before
                    happened, what = await self._next()
        except TimeoutError:
            happened, what = "timeout", wall_seconds
        finally:
            if watching is not None:
                watching.cancel()
        try:
            outcome = await self._settled(happened, what)
            self._clear()
        except _WorldLost as lost:
            outcome = await self._crashed(lost)
        self._drain()
        value, most = outcome.value, self.limits.output_characters
        return replace(
            outcome,
            output=outcome.output or self._printed.text(),
            value=value if value is None or do == "read" else shortened(value, most)[0],
            error=outcome.error and shortened(outcome.error, most)[0],
            seconds=time.perf_counter() - began,
        )

    async def _watch(self) -> None:
        assert self._jail is not None
        jail = self._jail
        while True:
            if await asyncio.to_thread(lambda: jail.too_full):
                return self._tell("disk", None)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _settled(self, happened: str, what: Any) -> Outcome:
        """What an event means; whatever is not an answer costs the interpreter.

        Raises:
            _WorldLost: It costs the world, too.
        """
        if happened == "died" and what == NOT_STARTED:
            raise _WorldLost("has too many processes to start an interpreter")
        self._lived = True
        if happened == "answer":
            outcome = outcome_of(what)
            if outcome is not None:
                return outcome
            happened = "nonsense"
        if happened == "gone":
            raise _WorldLost("ended in the middle of a call")
        if happened != "died":
            await self._end_all()
        self._drop_interpreter(keep_output=True)
        restarted = "the interpreter was started again and its variables are gone" if self.persistent else ""
        ending, words = why_it_ended(happened, what, self.limits)
        if self._jail is not None and (killed := self._jail.out_of_memory) > self._killed_for_memory:
            self._killed_for_memory = killed
            if happened == "died":
                ending, words = Ending.MEMORY, f"it used more than {self.limits.memory_mb} MiB and was ended"
        return Outcome(ending, error="; ".join(filter(None, (words, restarted))), restarted=True)

    async def settled(self) -> int:
        """Wait until what calls left behind is ended; how many processes that were, since the session began."""
        async with self._one_at_a_time:
            await self._cleared()
            return self.swept

    def _clear(self) -> None:
        """Have what a call left behind ended, while the caller thinks about its answer."""
        if self._jail is None:
            return
        if not self.persistent:
            self._owed = "ended"
            try:
                self._jail.clear()
            except InfrastructureError:
                raise _WorldLost("is gone") from None
        elif self._channel is not None:  # otherwise everything was ended with the interpreter
            self._owed = "swept"
            try:
                send_packet(self._jail.control, {"do": "sweep"})
            except OSError:
                raise _WorldLost("is gone") from None

    async def _cleared(self) -> None:
        """Until that is done."""
        owed, self._owed = self._owed, ""
        if not owed or self._jail is None:
            return
        said = await self._told(owed, self._jail.asked if owed == "ended" else None)
        if owed == "ended":
            self._drop_interpreter()
            self._jail.used = False
            if said.get("clean") is not True:
                self._end(clean=False)
            return
        self.swept += count_of(said["swept"])
        if said.get("survived") is not True:
            self._drop_interpreter()
            self._lost = (
                "what an earlier call had started could not be ended without the interpreter; it was started again and "
                "its variables are gone"
            )

    async def _end_all(self) -> None:
        assert self._jail is not None
        with contextlib.suppress(OSError):  # what is gone does not answer, either
            send_packet(self._jail.control, {"do": "end", "empty": False, "number": 0})
        await self._told("ended", 0)

    async def _told(self, answer: str, number: int | None = None) -> dict[str, Any]:
        """What the supervisor says to a question, of this number; deaths it tells of meanwhile are expected.

        Raises:
            _WorldLost: It does not answer.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while True:
                    happened, what = await self._next()
                    if happened == "gone":
                        break
                    if happened == "told" and answer in what and number in (None, what[answer]):
                        return dict(what)
        if self._jail is not None:
            self._jail.kill()
        raise _WorldLost("does not answer")

    # starting

    async def _ready(self) -> None:
        while self._jail is None:
            jail = self._jail = await self._take(self.limits)
            self._early, self._killed_for_memory, self._files_due = [], jail.out_of_memory, True
            self._lived = False
            self._loop.add_reader(jail.control, self._on_packet)
            if jail.used:
                self._owed = "ended"
                try:
                    await self._cleared()  # if it is not as it was at first, there is none again
                except _WorldLost:  # by those who lived in it before
                    self._end(clean=False)
        if self._channel is None:
            self._start_interpreter()

    def _start_interpreter(self) -> None:
        """It starts while its first request is under way."""
        assert self._jail is not None
        try:
            self._channel, theirs = socket.socketpair()
            self._channel.setblocking(False)
            self._output, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:  # of this process's own
            raise InfrastructureError(f"no interpreter can be started: {error.strerror}") from None
        os.set_blocking(end, True)
        try:
            with contextlib.suppress(OSError):  # of one that is gone the next that is heard is its end
                send_packet(self._jail.control, {"do": "start", "seed": self.seed}, [theirs.fileno(), end])
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
        assert self._jail is not None
        try:
            data = self._jail.control.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._deaf_to(self._jail.control)
            self._tell("gone", None)
            return
        message = object_of(data)
        if message is None or len(self._early) > _MOST_EARLY:
            self._deaf_to(self._jail.control)  # whoever says such things is not to be asked any more
            self._tell("gone", None)
        elif "died" in message:
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
        answer = object_of(body)
        if answer is not None and answer.get("number") == self._number and self._waiting is not None:
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
