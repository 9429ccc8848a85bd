"""Responses of servers are bounded in bytes and seconds, whatever a server sends."""

import asyncio
import gzip
import socket
import threading
import time
import zlib
from contextlib import contextmanager

import httpx2
import pytest

from whetstone.errors import InfrastructureError
from whetstone.network import fetch_bounded
from whetstone.tools import Mcp
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

PIECE = b"x" * 65536


@contextmanager
def serve_bytes(*chunks, endless=b"", every=0.0):
    """Serve these bytes to any request, then `endless` forever; yield the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def speak():
        while not over.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    for piece in chunks:
                        connection.sendall(piece)
                    while endless and not over.is_set():
                        connection.sendall(endless)
                        time.sleep(every)
                except OSError:
                    pass

    threading.Thread(target=speak, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        over.set()
        listening.close()


def answer(url, *, seconds=20.0, max_bytes=100_000):
    async def ask():
        async with httpx2.AsyncClient(timeout=10.0) as client:
            return await fetch_bounded(client, "GET", url, seconds=seconds, max_bytes=max_bytes)

    return asyncio.run(ask())


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("chunks", "endless"),
    [
        ((HEAD,), b"X-A: " + PIECE + b"\r\n"),
        ((HEAD, b"X-A: "), PIECE),
        ((), b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 100),
        ((), PIECE),
    ],
    ids=["headers", "one header", "hints", "no status"],
)
def test_endless_headers_are_rejected(chunks, endless):
    with serve_bytes(*chunks, endless=endless) as url, pytest.raises(httpx2.HTTPError):
        answer(url, seconds=2.0)


@pytest.mark.parametrize(
    ("head", "endless"),
    [(b"\r\n", PIECE), (b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PIECE + b"\r\n")],
    ids=["plain", "chunked"],
)
def test_endless_body_is_read_up_to_the_limit(head, endless):
    with serve_bytes(HEAD + head, endless=endless) as url:
        got = answer(url)
    assert got.is_cut
    assert got.content == b"x" * 100_000
    with pytest.raises(ValueError, match="longer than 100000 bytes"):
        got.json()


def test_slow_bytes_end_at_the_deadline():
    with (
        serve_bytes(HEAD + b"\r\n", endless=b"x", every=0.05) as url,
        pytest.raises(httpx2.ReadTimeout, match=r"0\.5 s"),
    ):
        answer(url, seconds=0.5)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate"])
def test_compressed_response_is_decompressed_up_to_the_limit(coding):
    packed = gzip.compress(b"\0" * 20_000_000) if "gzip" in coding else zlib.compress(b"\0" * 20_000_000)
    head = HEAD + f"Content-Encoding: {coding}\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    with serve_bytes(head + packed) as url:
        got = answer(url)
    assert got.is_cut
    assert got.content == b"\0" * 100_000
    small = gzip.compress("Grüße".encode())
    with serve_bytes(HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(small)}\r\n\r\n".encode() + small) as url:
        assert answer(url).text == "Grüße"


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "nothing"])
def test_other_content_encoding_is_rejected(coding):
    response = HEAD + f"Content-Encoding: {coding}\r\nContent-Length: 2\r\n\r\nhi".encode()
    with serve_bytes(response) as url, pytest.raises(httpx2.DecodingError, match="packed as"):
        answer(url)


@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "utf-7", "rot13", "zlib_codec", "unicode_escape", "cp037", "?"]
)
def test_codec_that_is_no_web_charset_is_not_used(charset):
    body = b"a-" * 40_000
    head = f"Content-Type: text/plain; charset={charset}\r\nContent-Length: {len(body)}\r\n\r\n"
    with serve_bytes(HEAD + head.encode() + body) as url:
        assert answer(url).text == body.decode()


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("utf-8", "Grüße".encode(), "Grüße"),
        ("ISO-8859-1", b"Gr\xfc\xdfe \x80", "Grüße €"),
        ('"shift_jis"', "こんにちは".encode("shift_jis"), "こんにちは"),
        ("utf-8", b"\xff", "\ufffd"),
    ],
)
def test_web_charsets_are_decoded(charset, body, text):
    head = f"Content-Type: text/html; charset={charset}\r\nContent-Length: {len(body)}\r\n\r\n"
    with serve_bytes(HEAD + head.encode() + body) as url:
        assert answer(url).text == text


def test_deeply_nested_json_is_an_error():
    body = b"[" * 90_000
    with serve_bytes(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body) as url:
        got = answer(url)
    with pytest.raises(ValueError):
        got.json()


def test_response_of_an_mcp_server_is_bounded(monkeypatch):
    pytest.importorskip("mcp", reason="the SDK of MCP is not installed")
    monkeypatch.setattr("whetstone.tools.mcp_transports.MAX_RESPONSE_BYTES", 100_000)
    head = HEAD + b"Content-Type: application/json\r\n\r\n"

    async def opened(url):
        source = Mcp(url=url, timeout_seconds=5.0)
        try:
            await source.open(Episode(Task("t", "?"), 0))
        finally:
            await source.close()

    with serve_bytes(head, endless=PIECE) as url, pytest.raises(InfrastructureError, match="the MCP server"):
        asyncio.run(opened(url))
