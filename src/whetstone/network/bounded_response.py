"""HTTP responses that are read within limits of size and time.

Note:
    A client's timeout applies to a single read, so a byte now and then keeps a response open for ever. A few compressed
    bytes can become gigabytes. A header names the codec; some of Python's codecs are slow or are not charsets.
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

MAX_RESPONSE_BYTES = 64 << 20
"""Default limit on the body of a response, in bytes: far more than a model can read."""
_MAX_HEADER_CHARACTERS = 1000
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
class BoundedResponse:
    """HTTP response of a server, with a body that may be cut at a limit."""

    status: int
    """HTTP status code."""
    headers: httpx2.Headers
    """Headers of the response, case-insensitive."""
    content: bytes
    """Decompressed body, at most as long as the limit."""
    is_cut: bool = False
    """Whether the body was longer than the limit."""

    @property
    def text(self) -> str:
        """Body as text, in the charset that the response names if it is a common one, otherwise in UTF-8."""
        charset = _CHARSET.search(self.headers.get("content-type", "")[:_MAX_HEADER_CHARACTERS])
        codec = _CHARSETS.get(charset[1].lower(), "utf-8") if charset else "utf-8"
        return self.content.decode(codec, errors="replace")

    def json(self) -> Any:
        """Return the body parsed as JSON.

        Raises:
            ValueError: If the body is not JSON, was cut at the limit, or is nested too deeply.
        """
        if self.is_cut:
            raise ValueError(f"the answer is longer than {len(self.content)} bytes")
        try:
            return json.loads(self.content)
        except RecursionError:
            raise ValueError("the answer is nested too deep") from None


async def fetch_bounded(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    seconds: float,
    max_bytes: int = MAX_RESPONSE_BYTES,
    **sent: Any,
) -> BoundedResponse:
    """Send a request and read its response within limits of size and time.

    Args:
        client: HTTP client that sends the request.
        method: HTTP method.
        url: Address of the request.
        seconds: Time limit in seconds, from connecting to the last byte.
        max_bytes: Maximum size of the body in bytes, both compressed and decompressed; the rest is not read.
        sent: Further arguments of the client's `request`, such as `headers` and `json`.

    Raises:
        httpx2.HTTPError: If the server is unreachable, exceeds the time limit, does not respond in HTTP, or uses a
            compression that was not offered.
    """
    headers = {"Accept-Encoding": "identity", **sent.pop("headers", {})}
    data = bytearray()
    try:
        async with asyncio.timeout(seconds), client.stream(method, url, headers=headers, **sent) as response:
            async for chunk in response.aiter_raw(65536):
                data += chunk
                if len(data) > max_bytes:
                    break
    except TimeoutError:
        raise httpx2.ReadTimeout(f"no answer within {seconds:g} s") from None
    content = _decompress(bytes(data), response.headers.get("content-encoding", ""), max_bytes)
    return BoundedResponse(response.status_code, response.headers, content[:max_bytes], len(content) > max_bytes)


def limit_response_bytes(max_bytes: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a response hook that limits the size of responses, for `httpx` clients in other libraries.

    A response that is longer than the limit raises `ReadError` when it is read, and a compressed response
    `DecodingError`.

    Args:
        max_bytes: Maximum size of a body in bytes.
    """

    async def bounded(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise httpx2.DecodingError("the answer is packed, which was not asked for", request=response.request)
        response.stream = _BoundedStream(response.stream, max_bytes)

    return bounded


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for chunk in self._stream:
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise httpx2.ReadError(f"the answer is longer than {self._max_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _decompress(data: bytes, coding: str, max_bytes: int) -> bytes:
    """Return a decompressed body, of which at most `max_bytes + 1` bytes are decompressed.

    Raises:
        httpx2.DecodingError: If the compression is neither gzip nor deflate, or the body is damaged.
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
