"""A connection whose client stops in the middle of a head ends, whichever request of the connection it is."""

import asyncio

import pytest

from support.served_policy import at_a_socket

pytest.importorskip("uvicorn", reason="pip install starlette uvicorn httptools")

WHOLE = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
PIECES = [b"G", b"GET / HTTP/1.1\r\nhos", b"\r\n", b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"POST / HTTP/1.1"]


async def answer(scope, receive, send):
    if scope["type"] == "http":
        if scope["path"] == "/slow":
            await asyncio.sleep(0.6)
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


async def read_response(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return await reader.readexactly(2)


def read_to_end(*writes, responses, seconds_to_ask=0.2):
    """The server ends a connection on which nothing follows these bytes."""

    async def run():
        async with at_a_socket(answer, seconds_to_ask=seconds_to_ask) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in writes:
                writer.write(piece)
                await asyncio.sleep(0.02)
            for _ in range(responses):
                assert await read_response(reader) == b"ok"
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("before", [(), (WHOLE,), (WHOLE, WHOLE)], ids=["first", "second", "third"])
def test_a_partial_head_ends_the_connection(piece, before):
    read_to_end(*before, piece, responses=len(before))


def test_a_partial_head_in_the_same_packet_as_a_request_ends_the_connection():
    read_to_end(WHOLE + PIECES[1], responses=1)


def test_a_partial_head_does_not_end_the_response_before_it():
    slow = WHOLE.replace(b"GET / ", b"GET /slow ")
    read_to_end(slow + PIECES[1], responses=1)
