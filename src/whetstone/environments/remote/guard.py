"""Access to a served environment: a token, or a loopback name without one; checked before every route.

Note:
    A loopback address is no protection from a browser on the same machine: see `network.loopback`.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from whetstone.network.loopback import find_other_site

TOKEN = "WHETSTONE_TOKEN"
"""The variable of the environment in which server and client are told the token."""


class Guard:
    """An ASGI application in front of another.

    Args:
        served: The other application.
        token: Value of `Authorization: Bearer`; empty: any, by a loopback name.
    """

    def __init__(self, served: Any, *, token: str = "") -> None:
        self.served, self.token = served, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            status, reason = self._refused(scope["headers"])
            if status:
                await _answer(send, status, reason)
                return
        if scope["type"] in ("http", "lifespan"):
            await self.served(scope, receive, send)

    def _refused(self, headers: list[tuple[bytes, bytes]]) -> tuple[int, str]:
        """(status, reason); 0 if the request has access."""
        named = dict(headers)
        if b"origin" in named:
            return 403, "pages in a browser may not ask"
        if not self.token:
            if reason := find_other_site(headers):
                return 403, f"without a token this server answers only its own machine: {reason}"
            return 0, ""
        given = named.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(given, self.token.encode()):
            return 401, f"the token is missing or another; set {TOKEN}"
        return 0, ""


async def _answer(send: Any, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
