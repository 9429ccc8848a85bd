"""Who may ask a server, and how much at once: looked at in front of everything else.

Easy to get wrong: an address of this machine alone is no protection from a browser on it. A page from anywhere may have
it ask, under a name that its own server has made stand for this machine. So the name is looked at, and no page may ask.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

from whetstone.network.loopback import LOOPBACK, named

TOKEN = "WHETSTONE_TOKEN"
"""The variable of the environment in which server and client are told the token."""
_MOST_BYTES = 16 << 20


class Guard:
    """An ASGI application in front of another.

    Args:
        token: What `Authorization: Bearer` has to say; empty: anything, by a name of this machine alone.
        most_bytes: Of one request.
    """

    def __init__(self, served: Any, *, token: str = "", most_bytes: int = _MOST_BYTES) -> None:
        self.served, self.token, self.most_bytes = served, token, most_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.served(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        status, why = self._refused(headers)
        if status:
            await _answer(send, status, why)
            return
        body = await _whole(receive, self.most_bytes)
        if body is None:
            await _answer(send, 413, f"more than {self.most_bytes} bytes")
            return
        await self.served(scope, _said_again(body, receive), send)

    def _refused(self, headers: dict[str, str]) -> tuple[int, str]:
        """(status, why); 0 where it may ask."""
        host = headers.get("host", "")
        name = named(host)
        if not self.token and name not in LOOPBACK:
            return 403, f"this server is not {name[:80]!r}; it is asked as {', '.join(LOOPBACK)}"
        if "origin" in headers:
            return 403, "pages in a browser may not ask"
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self.token and not hmac.compare_digest(given.encode(), self.token.encode()):
            return 401, f"the token is missing or another; set {TOKEN}"
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > 18 or int(length) > self.most_bytes):
            return 413, f"more than {self.most_bytes} bytes"
        return 0, ""


async def _whole(receive: Callable[[], Awaitable[Any]], most: int) -> bytes | None:
    """All that is sent; None where it is too much."""
    pieces, size = [], 0
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > most:
            return None
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(pieces)


def _said_again(body: bytes, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again


async def _answer(send: Any, status: int, why: str) -> None:
    body = json.dumps({"error": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
