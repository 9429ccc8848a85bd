"""A hostile guest: the sandbox returns arbitrary bytes, and the host must return a result or its own error.

A socket replaces the sandbox process, and this file is its other end. It reads requests like a real guest, and
sends replies that are valid, almost valid, forged or noise on all three streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
from typing import Any

from fuzzing.choices import Choices, require
from fuzzing.virtual_time import run
from whetstone.errors import InfrastructureError
from whetstone.sandbox import session as session_module
from whetstone.sandbox.guest.wire import LENGTH, PACKET_BYTES, receive_frame, receive_packet
from whetstone.sandbox.guest_call import call_in_guest
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
    """Guest end of the socket of a sandbox process."""

    def __init__(self, choices: Choices, loop: Any) -> None:
        self.choices, self.loop = choices, loop
        self.jail = Jail(LIMITS)
        self.guest_end = self.jail._guest_end
        self.guest_end.setblocking(False)
        self.channel: socket.socket | None = None
        self.output = -1
        self.number: Any = 0
        self.left = 24
        loop.add_reader(self.guest_end, self.receive_packet_of_host)

    def receive_packet_of_host(self) -> None:
        """Receive a packet of the host."""
        try:
            data, files, _, _ = socket.recv_fds(self.guest_end, PACKET_BYTES, 8)
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
            self.loop.add_reader(self.channel, self.receive_request)
        elif not self.choices.often(60):
            does, number = request.get("do"), request.get("number")
            self.packet({"ended": number, "clean": True} if does == "end" else {"swept": 0, "survived": True})
        self.misbehave(2)

    def receive_request(self) -> None:
        """Receive a request or a part of one."""
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
        """Send something, now and a little later."""
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
        """Send an almost valid reply of an interpreter."""
        reply = {"number": self.number, "value": "(1,)", "error": None, "kind": "error", "images": [], "cpu": 0.1}
        self.frame(self.choices.json(self.choices.mutated(reply, WORDS), WORDS).encode(errors="surrogatepass"))

    def forge(self) -> None:
        """Send a frame with arbitrary content."""
        self.frame(self.choices.json(self.choices.value(WORDS), WORDS).encode(errors="surrogatepass"))

    def lie(self) -> None:
        """Send a message that a supervisor never sends."""
        message = self.choices.one(
            ({"died": -9}, {"died": 1}, {"swept": 1, "survived": True}, {"ended": 0, "clean": True}, [], 5, {})
        )
        self.packet(self.choices.mutated(message, WORDS))

    def print(self) -> None:
        """Write to standard output."""
        if self.output >= 0:
            with contextlib.suppress(OSError):
                os.write(self.output, self.choices.raw(40) * self.choices.one((1, 1, 200)))

    def noise(self) -> None:
        """Send bytes that are not a message."""
        data = self.choices.raw(64)
        with contextlib.suppress(OSError):
            if self.channel is not None and self.choices.often(128):
                self.channel.send(data)
            elif data:
                self.guest_end.send(data)

    def flood(self) -> None:
        """Send the same message hundreds of times."""
        for _ in range(100):
            self.packet({"swept": 0, "survived": True, "x": "x" * 100})
            self.frame(b"1" * self.choices.one((0, 1, 400)))

    def vanish(self) -> None:
        """Close one stream."""
        if self.choices.often(100):
            self.hang_up()
        else:
            self.drop()

    def wait(self) -> None:
        """Send nothing."""

    def frame(self, body: bytes) -> None:
        """Send bytes with their length, or a wrong length, before them."""
        size = self.choices.one((1 << 31, 1 << 24, len(body) + 1, 0)) if self.choices.often(12) else len(body)
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.send(LENGTH.pack(size) + body)

    def packet(self, message: Any) -> None:
        """Send a status message as JSON."""
        with contextlib.suppress(OSError):
            self.guest_end.send(json.dumps(message).encode()[: PACKET_BYTES - 1])

    def drop(self) -> None:
        """Close the interpreter's end."""
        if self.channel is not None:
            self.loop.remove_reader(self.channel)
            self.channel.close()
            self.channel = None
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def hang_up(self) -> None:
        """Close everything."""
        self.drop()
        if self.guest_end.fileno() >= 0:
            self.loop.remove_reader(self.guest_end)
            self.guest_end.close()


async def conversation(choices: Choices) -> None:
    """Run calls against a guest with arbitrary replies."""
    loop = asyncio.get_running_loop()
    guests: list[Guest] = []

    async def take(limits: Limits) -> Jail:
        if len(guests) > 6:
            raise InfrastructureError("no more worlds")
        guests.append(Guest(choices, loop))
        return guests[-1].jail

    def give_back(session: Session, jail: Jail, clean: bool) -> None:
        jail.close()

    session = Session(
        take, give_back, limits=LIMITS, persistent=not choices.often(80), seed=0, place=asyncio.Semaphore(1),
        watched=False
    )  # fmt: skip
    try:
        for _ in range(1 + choices.below(5)):
            before = loop.time()
            with contextlib.suppress(InfrastructureError):
                await one_call(choices, session)
            require(loop.time() - before < 60, "a call takes too long", loop.time() - before)
            if choices.often(60):
                await asyncio.sleep(choices.below(30) / 10)
            require(len(session._queued) < _MOST_WAITING, "a guest fills memory", len(session._queued))
    finally:
        session.close()
        for guest in guests:
            guest.hang_up()
            guest.jail.close()


async def one_call(choices: Choices, session: Session) -> None:
    """Run one call that a tool can make to a session."""
    kind = choices.below(8)
    if kind == 5:
        require(isinstance(await session.wait_for_cleanup(), int), "swept processes are no number")
        return
    if kind == 6:
        came = await call_in_guest(session, "f", "((1,), {})", seconds=2.0)
        require(
            came.kind in ("value", "raised", "unusable") and isinstance(came.text, str), "no answer of a call", came
        )
        return
    if kind == 7:
        session.close()
        return
    outcome = await _run_call(session, kind)
    _well_formed(outcome, reads=kind == 2)


async def _run_call(session: Session, kind: int) -> Outcome:
    if kind == 1:
        return await session.shell("ls")
    if kind == 2:
        return await session.read("a")
    if kind == 3:
        return await session.write("a", b"x")
    return await (session.call_file_tool("view_path", path="a") if kind == 4 else session.python("1"))


def _well_formed(outcome: Outcome, *, reads: bool) -> None:
    most = 2 * LIMITS.output_characters + 200
    require(isinstance(outcome.ending, Ending), "an ending that is none", outcome.ending)
    require(isinstance(outcome.output, str) and len(outcome.output) <= most, "printed too much", len(outcome.output))
    require(reads or len(outcome.value or "") <= most, "a value without bounds", len(outcome.value or ""))
    require(len(outcome.error or "") <= most + 200, "an error without bounds", len(outcome.error or ""))
    require(
        isinstance(outcome.cpu_seconds, float) and math.isfinite(outcome.cpu_seconds), "seconds that are none", outcome
    )
    require(outcome.exit_code is None or type(outcome.exit_code) is int, "an exit code that is none", outcome.exit_code)
    require(outcome.data is None or isinstance(outcome.data, bytes), "data that is none")
    (outcome.output + (outcome.value or "") + (outcome.error or "")).encode()


def handshake(choices: Choices) -> None:
    """Receive one message of an untrusted peer."""
    stream = choices.often(128)
    host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET)
    with host_end, guest_end:
        body = (
            choices.raw(200)
            if choices.often(128)
            else choices.json(choices.value(WORDS), WORDS).encode(errors="replace")
        )
        size = choices.one((len(body), len(body), 1 << 31, 0, len(body) + 1))
        guest_end.send((LENGTH.pack(size) + body if stream else body) or b"0")
        guest_end.shutdown(socket.SHUT_WR)
        try:
            message = receive_frame(host_end) if stream else receive_packet(host_end)[0]
        except (OSError, ValueError):
            return
        require(message is None or isinstance(message, dict), "a message that is no mapping", message)


def one(choices: Choices) -> None:
    """Run one input."""
    if choices.often(20):
        handshake(choices)
    else:
        run(conversation(choices))


def plant() -> None:
    """Plant a host that accepts any value as seconds."""
    members = vars(session_module)
    honest = members["parse_outcome"]

    def trusting(reply: dict[str, Any]) -> Outcome | None:
        outcome: Outcome | None = honest(reply)
        if outcome is not None and reply.get("cpu") != 0.1:
            raise KeyError("planted")
        return outcome

    members["parse_outcome"] = trusting
