"""Access control of a served environment: a token, or a loopback name without a token; checked before every route.

Note:
    A loopback address is no protection from a browser on the same machine: see `network.loopback`.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from whetstone.network.host_header import find_other_site

TOKEN = "WHETSTONE_TOKEN"
"""Name of the environment variable with the token, for server and client."""


class Guard:
    """ASGI middleware that refuses requests without access to a served environment.

    Args:
        served: The application.
        token: Expected bearer token of the header `Authorization`; empty: no token, but requests must address this
            machine by a loopback name.
    """

    def __init__(self, served: Any, *, token: str = "") -> None:
        self.served, self.token = served, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward a request that has access; answer another with status 401 or 403."""
        if scope["type"] == "http":
            status, reason = self._find_refusal(scope["headers"])
            if status:
                await _answer(send, status, reason)
                return
        if scope["type"] in ("http", "lifespan"):
            await self.served(scope, receive, send)

    def _find_refusal(self, headers: list[tuple[bytes, bytes]]) -> tuple[int, str]:
        """Return the status and the reason of a refusal.

        Status 0 if the request has access.
        """
        named = dict(headers)
        if b"origin" in named:
            return 403, "requests from pages in a browser are refused"
        if not self.token:
            if reason := find_other_site(headers):
                return 403, f"without a token this server accepts only requests from its machine: {reason}"
            return 0, ""
        token = named.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(token, self.token.encode()):
            return 401, f"the token is missing or wrong; set {TOKEN}"
        return 0, ""


async def _answer(send: Any, status: int, reason: str) -> None:
    """Send an HTTP response whose JSON body has the reason of a refusal."""
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
