"""Whatever comes out of the sandbox, the host gets an answer or an error of its own."""

import asyncio
import json
import os
import socket

import pytest

from whetstone.sandbox import Ending, Limits
from whetstone.sandbox.guest.wire import LENGTH, frame, receive_frame, receive_packet
from whetstone.sandbox.jail import Jail
from whetstone.sandbox.session import Session


async def first_call(supervisor, interpreter=b"", *, ends=False, do="python"):
    """What comes of a call to a world whose supervisor and interpreter say this."""
    jail = Jail(Limits())

    async def take(limits):
        return jail

    def asked():
        data, files, _, _ = socket.recv_fds(jail._theirs, 65536, 8)
        if len(files) == 2:
            with socket.socket(fileno=files[0]) as channel:
                channel.send(interpreter)
                kept.append(channel.dup())
            os.close(files[1])
        elif ends:
            jail._theirs.send(json.dumps({"ended": json.loads(data)["number"]}).encode())
        for packet in supervisor:
            jail._theirs.send(packet)

    kept = []
    loop, raised = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    loop.add_reader(jail._theirs, asked)
    session = Session(
        take,
        lambda session, jail, clean: jail.control.close(),
        limits=Limits(wall_seconds=5.0),
        persistent=True,
        seed=0,
        place=asyncio.Semaphore(1),
        watched=False,
    )
    try:
        return await getattr(session, do)("1")
    finally:
        session.close()
        loop.remove_reader(jail._theirs)
        jail.end()
        for end in kept:
            end.close()
        assert not raised


@pytest.mark.parametrize("packet", [b"\xff", b"x", b"5", b"[]", b"null", b"[" * 2000, b'"died"'])
def test_a_supervisor_that_talks_nonsense_is_gone(packet):
    outcome = asyncio.run(first_call([packet]))
    assert outcome.ending is Ending.CRASHED


@pytest.mark.parametrize(
    "wrong", [{"exit_code": True}, {"value": 5}, {"images": "x"}, {"images": ["#"]}, {"error": []}]
)
def test_an_answer_that_is_none_costs_the_interpreter(wrong):
    outcome = asyncio.run(first_call([], frame({"number": 1, **wrong}), ends=True))
    assert (outcome.ending, outcome.restarted) == (Ending.CRASHED, True)


@pytest.mark.parametrize("said", [{"swept": None}, {"swept": "x", "survived": True}, {"swept": []}])
def test_what_a_supervisor_counts_is_a_number_or_nothing(said):
    async def counted():
        jail = Jail(Limits())
        session = Session(
            None, lambda *_: None, limits=Limits(), persistent=True, seed=0, place=asyncio.Semaphore(1), watched=False
        )
        session._jail, session._owed = jail, "swept"
        session._early = [("told", said)]
        try:
            return await session.settled()
        finally:
            jail.end()

    assert asyncio.run(counted()) == 0


@pytest.mark.parametrize("value", ["é", "#", "a", None])
def test_a_file_that_is_no_file_could_not_be_read(value):
    outcome = asyncio.run(first_call([], frame({"number": 1, "value": value}), do="read"))
    assert (outcome.ending, outcome.data) in ((Ending.ERROR, None), (Ending.OK, b""))


def test_packets_nobody_waits_for_are_not_kept_without_end():
    async def flooded():
        jail, jail_gone = Jail(Limits()), False
        session = Session(
            None, lambda *_: None, limits=Limits(), persistent=True, seed=0, place=asyncio.Semaphore(1), watched=False
        )
        session._jail = jail
        session._loop.add_reader(jail.control, session._on_packet)
        for _ in range(5000):
            if jail_gone := session._early[-1:] == [("gone", None)]:
                break
            jail._theirs.send(b'{"swept": 0}')
            await asyncio.sleep(0)
        session._loop.remove_reader(jail.control)
        jail.end()
        return jail_gone, len(session._early)

    gone, kept = asyncio.run(flooded())
    assert gone
    assert kept < 1000


MESSAGES = [b"\xff", b"5", b"[]", b"[" * 100_000, b"x"]


@pytest.mark.parametrize("body", MESSAGES, ids=range(len(MESSAGES)))
def test_a_first_message_that_is_none_is_a_value_error(body):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(LENGTH.pack(len(body)) + body)
        with pytest.raises(ValueError, match=""):
            receive_frame(ours)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(body[:60_000])
        with pytest.raises(ValueError, match=""):
            receive_packet(ours)


def test_nobody_waits_for_a_message_of_four_gigabytes():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(LENGTH.pack((1 << 32) - 1))
        with pytest.raises(ValueError, match="a message of 4294967295 bytes"):
            receive_frame(ours)
