"""How much of a server's answer is read, and for how long? So many bytes and so many seconds, whatever it sends.

Easy to get wrong: a client's timeout is of one read, so a byte now and then goes on for ever; a few packed bytes become
gigabytes; and a header names the codec, of which Python has some that are slow and some that are no charsets.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

MOST_BYTES = 64 << 20
"""Of an answer nobody set another bound for: a thousand times what a model can read."""
_MOST_OF_A_HEADER = 1000
_CHARSET = re.compile(r"""charset\s*=\s*["']?([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_CHARSETS = {
    name: codec
    for codec, names in {
        "utf-8": "utf-8 utf8 us-ascii ascii",
        "utf-16": "utf-16",
        "utf-16-le": "utf-16le",
        "utf-16-be": "utf-16be",
        "cp1252": "iso-8859-1 iso8859-1 latin-1 latin1 windows-1252 cp1252",  # as browsers read the first
        "cp1250": "windows-1250",
        "cp1251": "windows-1251 cp1251",
        "iso-8859-2": "iso-8859-2",
        "iso-8859-15": "iso-8859-15",
        "koi8-r": "koi8-r",
        "shift_jis": "shift_jis shift-jis sjis",
        "euc_jp": "euc-jp",
        "gb18030": "gb2312 gbk gb18030",
        "big5": "big5",
        "euc_kr": "euc-kr",
    }.items()
    for name in names.split()
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said, as far as it was read."""

    status: int
    headers: httpx2.Headers
    content: bytes
    """Unpacked."""
    cut: bool = False
    """Whether there was more than was to be read."""

    @property
    def text(self) -> str:
        """The content in the charset it names, where that is one of the usual ones, else as UTF-8."""
        named = _CHARSET.search(self.headers.get("content-type", "")[:_MOST_OF_A_HEADER])
        codec = _CHARSETS.get(named[1].lower(), "utf-8") if named else "utf-8"
        return self.content.decode(codec, errors="replace")

    def json(self) -> Any:
        """The content as JSON.

        Raises:
            ValueError: It is none, or there was more than was read.
        """
        if self.cut:
            raise ValueError(f"the answer is longer than {len(self.content)} bytes")
        try:
            return json.loads(self.content)
        except RecursionError:
            raise ValueError("the answer is nested too deep") from None


async def asked(
    client: httpx2.AsyncClient, method: str, url: str, *, seconds: float, max_bytes: int = MOST_BYTES, **sent: Any
) -> Answer:
    """One question and its answer.

    Args:
        seconds: How long all of it may take, from connecting to the last byte.
        max_bytes: Of the content, packed and unpacked; what is beyond is left.
        sent: As the client's `request` takes it.

    Raises:
        HTTPError: The server is not there, takes too long, or answers with what is no HTTP; also an `HTTPError`: it
            packs its answer in a way that is not read.
    """
    headers = {"Accept-Encoding": "identity", **sent.pop("headers", {})}
    data = bytearray()
    try:
        async with asyncio.timeout(seconds), client.stream(method, url, headers=headers, **sent) as answer:
            async for piece in answer.aiter_raw(65536):
                data += piece
                if len(data) > max_bytes:
                    break
    except TimeoutError:
        raise httpx2.ReadTimeout(f"no answer within {seconds:g} s") from None
    content = _unpacked(bytes(data), answer.headers.get("content-encoding", ""), max_bytes)
    return Answer(answer.status_code, answer.headers, content[:max_bytes], len(content) > max_bytes)


def no_more_than(max_bytes: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A client's response hook, for clients that others read: an answer that is longer, or packed, is an error."""

    async def bounded(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise httpx2.DecodingError("the answer is packed, which was not asked for", request=response.request)
        response.stream = _Bounded(response.stream, max_bytes)

    return bounded


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > self._max_bytes:
                raise httpx2.ReadError(f"the answer is longer than {self._max_bytes} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _unpacked(data: bytes, coding: str, max_bytes: int) -> bytes:
    """At most one byte more than there may be.

    Raises:
        DecodingError: It is packed in another way than gzip and deflate, or damaged.
    """
    coding = coding[:40].strip().lower()
    if coding in ("", "identity"):
        return data
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise httpx2.DecodingError(f"the answer is packed as {coding!r}, which was not asked for")
    try:
        return zlib.decompressobj(wbits=47).decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise httpx2.DecodingError(f"the answer is damaged: {error}") from None
