"""Asking servers on the network, those on a list and no others.

Easy to get wrong: a server on the list may send the agent on to one that is not. So each step of a redirection is
checked as if it had been asked for, and of a host that is not on the list nothing is resolved, let alone fetched. And
a name on the list may lead into one's own network: whoever owns it says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urljoin, urlsplit

import httpx2

from whetstone.chat.message import Text
from whetstone.errors import RecipeError, ToolError, explained
from whetstone.network import Answer, NotPublicError, PublicTransport, asked
from whetstone.network.addresses import is_address
from whetstone.tools.blame import UNSAID
from whetstone.tools.protocol import Result
from whetstone.tools.side_effects import EFFECTS, Effect, effect_of_method

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_MOST_STEPS = 5
_LONGEST_URL = 8000
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})


class Http:
    """Requests to servers on a list: one tool, `http`.

    Args:
        allow: Hosts: `example.org`, `example.org:8080`, `*.example.org` for all below it. Without a port the usual
            ones. A name leads to public addresses alone; others are listed as the addresses they are, `10.0.0.7:8080`,
            and this machine also as `localhost`.
        methods: What may be done there.
        timeout_seconds: How long a request may take.
        max_bytes: Of an answer; what is beyond is left.
        private: Whether names on the list may lead to addresses that are not public.

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
        private: bool = False,
    ) -> None:
        if not allow:
            raise RecipeError("http: `allow` lists the hosts that may be asked, and is empty")
        for host in allow:
            if "/" in host or not host.strip("*.") or "*" in host.removeprefix("*."):
                raise RecipeError(
                    f'http: "{host}" is no host; write `example.org`, `example.org:8080`, `*.example.org`'
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
            return _refused(f"{does} is not allowed; allowed are {', '.join(self.methods)}")
        async with httpx2.AsyncClient(
            timeout=self.timeout_seconds, transport=PublicTransport(also=self._may_be_private), trust_env=False
        ) as client:
            for _ in range(_MOST_STEPS):
                if not permits(self.allow, url):
                    return _refused(f"{url[:200]} is not on the list of hosts: {', '.join(self.allow)}")
                try:
                    answer = await asked(
                        client,
                        does,
                        url,
                        seconds=self.timeout_seconds,
                        max_bytes=self.max_bytes,
                        content=body.encode() or None,
                    )
                except NotPublicError as error:
                    return _refused(str(error))
                except (httpx2.HTTPError, *UNSAID) as error:
                    raise ToolError(explained(error)) from None
                if answer.status not in _REDIRECTIONS or "location" not in answer.headers:
                    return _shown(answer)
                url = urljoin(url, answer.headers["location"][:_LONGEST_URL])
                does, body = _carried_on(answer.status, does, body)
        raise ToolError(f"more than {_MOST_STEPS} redirections")

    def _may_be_private(self, host: str) -> bool:
        """Whether the recipe says that this host is none of the world: by its address, or of all of them."""
        listed = {allowed.partition(":")[0] for allowed in self.allow}
        return self.private or (host in listed and (is_address(host) or host == "localhost"))


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


def _shown(answer: Answer) -> str:
    """An answer as the agent reads it."""
    cut = f"\n[… cut at {len(answer.content)} bytes …]" if answer.cut else ""
    said = answer.text + cut
    if answer.status >= 400:
        said = f"[status {answer.status}]\n{said}"
    return said or f"[status {answer.status}, nothing was said]"


def _carried_on(status: int, method: str, body: str) -> tuple[str, str]:
    """How a redirection is followed: all but 307 and 308 ask anew, without what was sent."""
    return (method, body) if status in (307, 308) else ("GET", "")


def _refused(why: str) -> Result:
    return Result((Text(f"error: {why}"),), "refused_by_policy")
