"""Any reply of the guest is a result or an error on the host."""

import asyncio
import json
import os
import socket

import pytest

from whetstone.sandbox import Ending, Limits
from whetstone.sandbox.guest.wire import LENGTH, frame_message, receive_frame, receive_packet
from whetstone.sandbox.jail import Jail
from whetstone.sandbox.session import Session


async def first_call(supervisor, interpreter=b"", *, ends=False, do="python"):
    """Return the result of a call whose supervisor and interpreter send these replies."""
    jail = Jail(Limits())

    async def take(limits):
        return jail

    def reply():
        data, files, _, _ = socket.recv_fds(jail._guest_end, 65536, 8)
        if len(files) == 2:
            with socket.socket(fileno=files[0]) as channel:
                channel.send(interpreter)
                closed.append(channel.dup())
            os.close(files[1])
        elif ends:
            jail._guest_end.send(json.dumps({"ended": json.loads(data)["number"]}).encode())
        for packet in supervisor:
            jail._guest_end.send(packet)

    closed = []
    loop, raised = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    loop.add_reader(jail._guest_end, reply)
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
        loop.remove_reader(jail._guest_end)
        jail.close()
        for end in closed:
            end.close()
        assert not raised


@pytest.mark.parametrize("packet", [b"\xff", b"x", b"5", b"[]", b"null", b"[" * 2000, b'"died"'])
def test_supervisor_with_invalid_messages_is_ended(packet):
    outcome = asyncio.run(first_call([packet]))
    assert outcome.ending is Ending.CRASHED


@pytest.mark.parametrize(
    "wrong", [{"exit_code": True}, {"value": 5}, {"images": "x"}, {"images": ["#"]}, {"error": []}]
)
def test_invalid_reply_costs_the_interpreter(wrong):
    outcome = asyncio.run(first_call([], frame_message({"number": 1, **wrong}), ends=True))
    assert (outcome.ending, outcome.restarted) == (Ending.CRASHED, True)


@pytest.mark.parametrize("reply", [{"swept": None}, {"swept": "x", "survived": True}, {"swept": []}])
def test_counts_of_a_supervisor_are_numbers_or_missing(reply):
    async def counted():
        jail = Jail(Limits())
        session = Session(
            None, lambda *_: None, limits=Limits(), persistent=True, seed=0, place=asyncio.Semaphore(1), watched=False
        )
        session._jail, session._pending_report = jail, "swept"
        session._queued = [("told", reply)]
        try:
            return await session.wait_for_cleanup()
        finally:
            jail.close()

    assert asyncio.run(counted()) == 0


@pytest.mark.parametrize("value", ["é", "#", "a", None])
def test_invalid_file_cannot_be_read(value):
    outcome = asyncio.run(first_call([], frame_message({"number": 1, "value": value}), do="read"))
    assert (outcome.ending, outcome.data) in ((Ending.ERROR, None), (Ending.OK, b""))


def test_unexpected_packets_are_not_stored_without_bound():
    async def flooded():
        jail, jail_gone = Jail(Limits()), False
        session = Session(
            None, lambda *_: None, limits=Limits(), persistent=True, seed=0, place=asyncio.Semaphore(1), watched=False
        )
        session._jail = jail
        session._loop.add_reader(jail.control, session._on_packet)
        for _ in range(5000):
            if jail_gone := session._queued[-1:] == [("gone", None)]:
                break
            jail._guest_end.send(b'{"swept": 0}')
            await asyncio.sleep(0)
        session._loop.remove_reader(jail.control)
        jail.close()
        return jail_gone, len(session._queued)

    ended, stored = asyncio.run(flooded())
    assert ended
    assert stored < 1000


MESSAGES = [b"\xff", b"5", b"[]", b"[" * 100_000, b"x"]


@pytest.mark.parametrize("body", MESSAGES, ids=range(len(MESSAGES)))
def test_invalid_first_message_is_a_value_error(body):
    host_end, guest_end = socket.socketpair()
    with host_end, guest_end:
        guest_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        guest_end.sendall(LENGTH.pack(len(body)) + body)
        with pytest.raises(ValueError, match=""):
            receive_frame(host_end)
    host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with host_end, guest_end:
        guest_end.send(body[:60_000])
        with pytest.raises(ValueError, match=""):
            receive_packet(host_end)


def test_message_of_four_gigabytes_is_not_awaited():
    host_end, guest_end = socket.socketpair()
    with host_end, guest_end:
        guest_end.sendall(LENGTH.pack((1 << 32) - 1))
        with pytest.raises(ValueError, match="a frame of 4294967295 bytes"):
            receive_frame(host_end)
