"""Asking servers on the network, those on a list and no others.

Easy to get wrong: a server on the list may send the agent on to one that is not. So each step of a redirection is
checked as if it had been asked for, and of a host that is not on the list nothing is resolved, let alone fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urljoin, urlsplit

import httpx2

from whetstone.chat.message import Text
from whetstone.errors import RecipeError, ToolError, explained
from whetstone.tools.blame import UNSAID
from whetstone.tools.protocol import Result

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_MOST_STEPS = 5
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})


class Http:
    """Requests to servers on a list: one tool, `http`.

    Args:
        allow: Hosts: `example.org`, `example.org:8080`, `*.example.org` for all below it. Without a port the usual
            ones.
        methods: What may be done there.
        timeout_seconds: How long a request may take.
        max_bytes: Of an answer; what is beyond is left.

    Raises:
        RecipeError: The list is empty, or an entry is no host.
    """

    replayable = False
    """The network does not say the same thing twice."""

    def __init__(
        self,
        *,
        allow: Sequence[str],
        methods: Sequence[str] = ("GET",),
        timeout_seconds: float = 10.0,
        max_bytes: int = 200_000,
    ) -> None:
        if not allow:
            raise RecipeError("http: `allow` lists the hosts that may be asked, and is empty")
        for host in allow:
            if "/" in host or not host.strip("*.") or "*" in host.removeprefix("*."):
                raise RecipeError(
                    f'http: "{host}" is no host; write `example.org`, `example.org:8080`, `*.example.org`'
                )
        self.allow, self.methods = tuple(host.lower() for host in allow), tuple(m.upper() for m in methods)
        self.timeout_seconds, self.max_bytes = timeout_seconds, max_bytes

    async def http(self, url: str, method: Method = "GET", body: str = "") -> str | Result:
        """Ask a server on the network.

        Args:
            url: The address.
            method: What to do there.
            body: What is sent, such as JSON.
        """
        does: str = method
        if does not in self.methods:
            return _refused(f"{does} is not allowed; allowed are {', '.join(self.methods)}")
        async with httpx2.AsyncClient(timeout=self.timeout_seconds, follow_redirects=False, trust_env=False) as client:
            for _ in range(_MOST_STEPS):
                if not permits(self.allow, url):
                    return _refused(f"{url[:200]} is not on the list of hosts: {', '.join(self.allow)}")
                try:
                    answer = await self._asked(client, does, url, body)
                    if isinstance(answer, str):
                        return answer
                    url = urljoin(url, answer.headers["location"])
                except (httpx2.HTTPError, *UNSAID) as error:
                    raise ToolError(explained(error)) from None
                does, body = _carried_on(answer.status_code, does, body)
        raise ToolError(f"more than {_MOST_STEPS} redirections")

    async def _asked(self, client: httpx2.AsyncClient, method: str, url: str, body: str) -> str | httpx2.Response:
        async with client.stream(method, url, content=body.encode() or None) as answer:
            if answer.status_code in _REDIRECTIONS and "location" in answer.headers:
                return answer
            data = b""
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > self.max_bytes:
                    break
            cut = f"\n[… cut at {self.max_bytes} bytes …]" if len(data) > self.max_bytes else ""
            text = _decoded(data[: self.max_bytes], answer.encoding)
            said = text + cut if answer.status_code < 400 else f"[status {answer.status_code}]\n{text}{cut}"
            return said or f"[status {answer.status_code}, nothing was said]"


def permits(allow: Sequence[str], url: str) -> bool:
    """Whether an address is on the list."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    host = (parts.hostname or "").lower().rstrip(".")
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        return False
    usual = port is None or port == {"http": 80, "https": 443}[parts.scheme]
    for allowed in allow:
        name, _, number = allowed.partition(":")
        same_port = int(number) == port if number else usual
        if same_port and (name == host or (name.startswith("*.") and host.endswith(name[1:]))):
            return True
    return False


def _decoded(data: bytes, encoding: str | None) -> str:
    """A body as text; a server may name an encoding that is none, or none of text."""
    try:
        return data.decode(encoding or "utf-8", errors="replace")
    except LookupError:
        return data.decode(errors="replace")


def _carried_on(status: int, method: str, body: str) -> tuple[str, str]:
    """How a redirection is followed: all but 307 and 308 ask anew, without what was sent."""
    return (method, body) if status in (307, 308) else ("GET", "")


def _refused(why: str) -> Result:
    return Result((Text(f"error: {why}"),), "refused_by_policy")
