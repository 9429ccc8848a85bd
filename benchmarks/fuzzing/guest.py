"""A hostile guest: what comes out of the sandbox is any bytes, and the host gets an answer or an error of its own.

The world is not real: a socket stands for it, and this file is on its other side. It reads requests as a real one
would, and answers in turns that are right, nearly right, forged or noise, on the three streams there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
from typing import Any

from fuzzing.choices import Choices, held
from fuzzing.virtual_time import run
from whetstone.errors import InfrastructureError
from whetstone.sandbox import session as session_module
from whetstone.sandbox.calling import called_there
from whetstone.sandbox.guest.wire import LENGTH, PACKET_BYTES, receive_frame, receive_packet
from whetstone.sandbox.jail import Jail
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import Ending, Outcome
from whetstone.sandbox.session import Session

LIMITS = Limits(wall_seconds=2.0, output_characters=200, output_bytes=4096)
WORDS = (
    "number", "value", "error", "kind", "images", "exit_code", "data", "cpu", "memory", "died", "swept", "survived",
    "ended",
    "clean", "started", "ok", "aGk=", "(1,)", "[1]", "inf", "nan", "(inf,)", "ZeroDivisionError: x", "{}",
)  # fmt: skip
_MOST_WAITING = 1000


class Guest:
    """The other side of a world's socket."""

    def __init__(self, choices: Choices, loop: Any) -> None:
        self.choices, self.loop = choices, loop
        self.jail = Jail(LIMITS)
        self.theirs = self.jail._theirs
        self.theirs.setblocking(False)
        self.channel: socket.socket | None = None
        self.output = -1
        self.number: Any = 0
        self.left = 24
        loop.add_reader(self.theirs, self.asked)

    def asked(self) -> None:
        """A packet of the host."""
        try:
            data, files, _, _ = socket.recv_fds(self.theirs, PACKET_BYTES, 8)
        except OSError:
            data, files = b"", []
        if not data:
            self.hang_up()
            return
        request = json.loads(data)
        if len(files) == 2:
            self.drop()
            self.channel, self.output = socket.socket(fileno=files[0]), files[1]
            self.channel.setblocking(False)
            os.set_blocking(self.output, False)
            self.loop.add_reader(self.channel, self.called)
        elif not self.choices.often(60):
            does, number = request.get("do"), request.get("number")
            self.packet({"ended": number, "clean": True} if does == "end" else {"swept": 0, "survived": True})
        self.misbehave(2)

    def called(self) -> None:
        """A request, or a piece of one."""
        assert self.channel is not None
        try:
            data = self.channel.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.loop.remove_reader(self.channel)
            return
        with contextlib.suppress(ValueError, KeyError, TypeError):
            self.number = json.loads(data[LENGTH.size :])["number"]
        self.misbehave(3)
        if not self.choices.often(60):
            self.answer()

    def misbehave(self, most: int) -> None:
        """Do something, now and a little later."""
        for _ in range(self.choices.below(most + 1)):
            self.left -= 1
            if self.left < 0:
                return
            what = self.choices.one(
                (self.answer, self.forge, self.print, self.lie, self.noise, self.flood, self.vanish, self.wait)
            )
            if self.choices.often(80):
                self.loop.call_later(self.choices.below(30) / 10, what)
            else:
                what()

    def answer(self) -> None:
        """What a real interpreter would say, nearly."""
        said = {"number": self.number, "value": "(1,)", "error": None, "kind": "error", "images": [], "cpu": 0.1}
        self.frame(self.choices.json(self.choices.mutated(said, WORDS), WORDS).encode(errors="surrogatepass"))

    def forge(self) -> None:
        """Any frame."""
        self.frame(self.choices.json(self.choices.value(WORDS), WORDS).encode(errors="surrogatepass"))

    def lie(self) -> None:
        """What a supervisor never says."""
        said = self.choices.one(
            ({"died": -9}, {"died": 1}, {"swept": 1, "survived": True}, {"ended": 0, "clean": True}, [], 5, {})
        )
        self.packet(self.choices.mutated(said, WORDS))

    def print(self) -> None:
        """On standard output."""
        if self.output >= 0:
            with contextlib.suppress(OSError):
                os.write(self.output, self.choices.raw(40) * self.choices.one((1, 1, 200)))

    def noise(self) -> None:
        """No message at all."""
        data = self.choices.raw(64)
        with contextlib.suppress(OSError):
            if self.channel is not None and self.choices.often(128):
                self.channel.send(data)
            elif data:
                self.theirs.send(data)

    def flood(self) -> None:
        """The same a hundred times, and again."""
        for _ in range(100):
            self.packet({"swept": 0, "survived": True, "x": "x" * 100})
            self.frame(b"1" * self.choices.one((0, 1, 400)))

    def vanish(self) -> None:
        """Of the streams, one ends."""
        if self.choices.often(100):
            self.hang_up()
        else:
            self.drop()

    def wait(self) -> None:
        """Nothing."""

    def frame(self, body: bytes) -> None:
        """Any bytes, with their length or another before them."""
        size = self.choices.one((1 << 31, 1 << 24, len(body) + 1, 0)) if self.choices.often(12) else len(body)
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.send(LENGTH.pack(size) + body)

    def packet(self, said: Any) -> None:
        """What it says of itself, as JSON."""
        with contextlib.suppress(OSError):
            self.theirs.send(json.dumps(said).encode()[: PACKET_BYTES - 1])

    def drop(self) -> None:
        """Let go of the interpreter's side."""
        if self.channel is not None:
            self.loop.remove_reader(self.channel)
            self.channel.close()
            self.channel = None
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def hang_up(self) -> None:
        """Let go of all of it."""
        self.drop()
        if self.theirs.fileno() >= 0:
            self.loop.remove_reader(self.theirs)
            self.theirs.close()


async def conversation(choices: Choices) -> None:
    """Some calls to a world that answers as it likes."""
    loop = asyncio.get_running_loop()
    guests: list[Guest] = []

    async def take(limits: Limits) -> Jail:
        if len(guests) > 6:
            raise InfrastructureError("no more worlds")
        guests.append(Guest(choices, loop))
        return guests[-1].jail

    def give_back(session: Session, jail: Jail, clean: bool) -> None:
        jail.end()

    session = Session(
        take, give_back, limits=LIMITS, persistent=not choices.often(80), seed=0, place=asyncio.Semaphore(1),
        watched=False
    )  # fmt: skip
    try:
        for _ in range(1 + choices.below(5)):
            before = loop.time()
            with contextlib.suppress(InfrastructureError):
                await one_call(choices, session)
            held(loop.time() - before < 60, "a call takes too long", loop.time() - before)
            if choices.often(60):
                await asyncio.sleep(choices.below(30) / 10)
            held(len(session._early) < _MOST_WAITING, "a guest fills memory", len(session._early))
    finally:
        session.close()
        for guest in guests:
            guest.hang_up()
            guest.jail.end()


async def one_call(choices: Choices, session: Session) -> None:
    """Whatever a tool asks of a session."""
    kind = choices.below(8)
    if kind == 5:
        held(isinstance(await session.settled(), int), "swept processes are no number")
        return
    if kind == 6:
        came = await called_there(session, "f", "((1,), {})", seconds=2.0)
        held(came.kind in ("value", "raised", "unusable") and isinstance(came.said, str), "no answer of a call", came)
        return
    if kind == 7:
        session.close()
        return
    outcome = await _asked(session, kind)
    _well_formed(outcome, reads=kind == 2)


async def _asked(session: Session, kind: int) -> Outcome:
    if kind == 1:
        return await session.shell("ls")
    if kind == 2:
        return await session.read("a")
    if kind == 3:
        return await session.write("a", b"x")
    return await (session.folder("view", path="a") if kind == 4 else session.python("1"))


def _well_formed(outcome: Outcome, *, reads: bool) -> None:
    most = 2 * LIMITS.output_characters + 200
    held(isinstance(outcome.ending, Ending), "an ending that is none", outcome.ending)
    held(isinstance(outcome.output, str) and len(outcome.output) <= most, "printed too much", len(outcome.output))
    held(reads or len(outcome.value or "") <= most, "a value without bounds", len(outcome.value or ""))
    held(len(outcome.error or "") <= most + 200, "an error without bounds", len(outcome.error or ""))
    held(
        isinstance(outcome.cpu_seconds, float) and math.isfinite(outcome.cpu_seconds), "seconds that are none", outcome
    )
    held(outcome.exit_code is None or type(outcome.exit_code) is int, "an exit code that is none", outcome.exit_code)
    held(outcome.data is None or isinstance(outcome.data, bytes), "data that is none")
    (outcome.output + (outcome.value or "") + (outcome.error or "")).encode()


def handshake(choices: Choices) -> None:
    """One message of a side that may be anybody."""
    stream = choices.often(128)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET)
    with ours, theirs:
        body = (
            choices.raw(200)
            if choices.often(128)
            else choices.json(choices.value(WORDS), WORDS).encode(errors="replace")
        )
        size = choices.one((len(body), len(body), 1 << 31, 0, len(body) + 1))
        theirs.send((LENGTH.pack(size) + body if stream else body) or b"0")
        theirs.shutdown(socket.SHUT_WR)
        try:
            said = receive_frame(ours) if stream else receive_packet(ours)[0]
        except (OSError, ValueError):
            return
        held(said is None or isinstance(said, dict), "a message that is no mapping", said)


def one(choices: Choices) -> None:
    """One input."""
    if choices.often(20):
        handshake(choices)
    else:
        run(conversation(choices))


def plant() -> None:
    """A host that takes any seconds for seconds."""
    honest = session_module.outcome_of  # type: ignore[attr-defined]

    def trusting(answer: dict[str, Any]) -> Outcome | None:
        outcome = honest(answer)
        if outcome is not None and answer.get("cpu") != 0.1:
            raise KeyError("planted")
        return outcome

    session_module.outcome_of = trusting  # type: ignore[attr-defined]
