"""HTTP tool with an allowlist of hosts.

Note:
    An allowed server can redirect to another host. Each redirect is therefore checked like a first request, and a host
    that is not on the list is not even resolved. An allowed name can also resolve to a private address, because its
    owner controls its DNS record; private addresses are rejected by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urljoin, urlsplit

import httpx2

from whetstone.chat.message import Text
from whetstone.errors import RecipeError, ToolError, summarize_exception
from whetstone.network import BoundedResponse, NotPublicError, PublicTransport, fetch_bounded
from whetstone.network.public_addresses import is_address
from whetstone.tools.protocol import Result
from whetstone.tools.server_health import UNSAID
from whetstone.tools.side_effects import EFFECTS, Effect, effect_of_method

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_MOST_STEPS = 5
_LONGEST_URL = 8000
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})


class Http:
    """HTTP requests to servers on an allowlist: one tool, `http`.

    Args:
        allow: Hosts: `example.org`, `example.org:8080`, `*.example.org` for all subdomains. Without a port, the
            standard ports apply. A name must resolve to a public address. List other addresses as such,
            `10.0.0.7:8080`, and this machine also as `localhost`.
        methods: Allowed HTTP methods.
        timeout_seconds: Time limit of a request, in seconds.
        max_bytes: Maximum size of a response in bytes; the rest is cut off.
        private: Whether allowed names may resolve to addresses that are not public.

    Raises:
        RecipeError: If the list is empty, or an entry is not a host.
    """

    replayable = False
    """False, because servers can respond differently to the same request."""

    def __init__(
        self,
        *,
        allow: Sequence[str],
        methods: Sequence[str] = ("GET",),
        timeout_seconds: float = 10.0,
        max_bytes: int = 200_000,
        private: bool = False,
    ) -> None:
        if not allow:
            raise RecipeError("http: `allow` is empty; list the allowed hosts")
        for host in allow:
            if "/" in host or not host.strip("*.") or "*" in host.removeprefix("*."):
                raise RecipeError(
                    f'http: "{host}" is not a host; write `example.org`, `example.org:8080`, `*.example.org`'
                )
        self.effects: Effect = max(map(effect_of_method, methods), key=EFFECTS.index, default="read")
        self.allow, self.methods = tuple(host.lower() for host in allow), tuple(m.upper() for m in methods)
        self.timeout_seconds, self.max_bytes, self.private = timeout_seconds, max_bytes, private

    async def http(self, url: str, method: Method = "GET", body: str = "") -> str | Result:
        """Ask a server on the network.

        Args:
            url: The address.
            method: What to do there.
            body: What is sent, such as JSON.
        """
        does: str = method
        if does not in self.methods:
            return _refuse(f"{does} is not allowed; allowed are {', '.join(self.methods)}")
        async with httpx2.AsyncClient(
            timeout=self.timeout_seconds, transport=PublicTransport(is_allowed=self._may_be_private), trust_env=False
        ) as client:
            for _ in range(_MOST_STEPS):
                if not is_allowed_host(self.allow, url):
                    return _refuse(f"{url[:200]} is not on the list of hosts: {', '.join(self.allow)}")
                try:
                    answer = await fetch_bounded(
                        client,
                        does,
                        url,
                        seconds=self.timeout_seconds,
                        max_bytes=self.max_bytes,
                        content=body.encode() or None,
                    )
                except NotPublicError as error:
                    return _refuse(str(error))
                except (httpx2.HTTPError, *UNSAID) as error:
                    raise ToolError(summarize_exception(error)) from None
                if answer.status not in _REDIRECTIONS or "location" not in answer.headers:
                    return _format_response(answer)
                url = urljoin(url, answer.headers["location"][:_LONGEST_URL])
                does, body = _carried_on(answer.status, does, body)
        raise ToolError(f"more than {_MOST_STEPS} redirections")

    def _may_be_private(self, host: str) -> bool:
        """Return whether the recipe allows a private address for a host: by an entry for it, or for all hosts."""
        listed = {allowed.partition(":")[0] for allowed in self.allow}
        return self.private or (host in listed and (is_address(host) or host == "localhost"))


def is_allowed_host(allow: Sequence[str], url: str) -> bool:
    """Return whether an allowlist permits the host and port of a URL.

    Args:
        allow: Entries of the allowlist, in lower case.
        url: URL of the request.
    """
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


def _format_response(answer: BoundedResponse) -> str:
    """Return a response as text for the model: the status if it is an error, then the body."""
    cut = f"\n[… cut at {len(answer.content)} bytes …]" if answer.is_cut else ""
    text = answer.text + cut
    if answer.status >= 400:
        text = f"[status {answer.status}]\n{text}"
    return text or f"[status {answer.status}, nothing was said]"


def _carried_on(status: int, method: str, body: str) -> tuple[str, str]:
    """Return (method, body) of a redirected request: 307 and 308 keep both, others become a GET without a body."""
    return (method, body) if status in (307, 308) else ("GET", "")


def _refuse(why: str) -> Result:
    return Result((Text(f"error: {why}"),), "refused_by_policy")
