"""One question to a server over HTTP: asked within a deadline, again where it is busy, and its failures told apart.

Easy to get wrong: an error that comes back with status 200 and `{"error": …}` is an error all the same; a server that
is down is no answer the agent could learn from; and a server that refuses what the agent made up has not failed.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx2

from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.json_lines import writable
from whetstone.network import Answer, asked, trusted

_BUSY = (408, 425, 429, 502, 503, 504)
_UNTOUCHED = (425, 429, 503)
"""Of these, what says that nothing was carried out."""
_NOT_ASKED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_OURS = (401, 402, 403, 407)
"""Refusals that are about who asks, not about what."""


class Refused(Exception):
    """A server refuses what the agent asked for; the agent may read the text.

    Args:
        status: Of the answer; 0: there was none.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status

    @property
    def unanswered(self) -> bool:
        """Whether the server may be down, or have broken over what it was asked: to be found out by asking it else."""
        return self.status == 0 or self.status >= 500


class UnknownThere(EpisodeError):
    """A server knows nothing of what it was asked about (404)."""


class Asking:
    """A connection to a server.

    Args:
        url: Where it is.
        seconds: How long one answer may take.
        tries: How often a busy or unreachable server is asked.
        token: Told with every question, where the server asks for one.
    """

    def __init__(self, url: str, *, seconds: float = 60.0, tries: int = 3, token: str = "") -> None:
        self.url, self.seconds, self.tries = url.rstrip("/"), seconds, tries
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client: httpx2.AsyncClient | None = None

    async def ask(self, method: str, path: str, body: Any = None, *, acting: bool = False) -> Any:
        """What it answers, as JSON.

        Args:
            acting: Whether what is asked for is the agent's own: what is refused then is for him to read, and it is
                not asked again where it may have been carried out.

        Raises:
            InfrastructureError: It is not there, stays busy, or answers what cannot be read.
            UnknownThere: It says that the episode is not there (404).
            EpisodeError: It says that the episode is not in the state for it (409).
            TaskError: It does not know the task (422).
            Refused: Where the agent is acting: any of 400 to 499 that is about what was asked, or an `error` with
                status 200; and, `unanswered`, where there was no answer, or one of a server that broke over it.
        """
        client = self._connected()
        said = ""
        sent = {} if body is None else {"json": writable(body)}
        for attempt in range(self.tries):
            if attempt:
                await asyncio.sleep(min(5.0, 0.1 * 4**attempt))
            try:
                answer = await asked(client, method, path, seconds=self.seconds, **sent)
            except httpx2.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
                if acting and not isinstance(error, _NOT_ASKED):
                    raise Refused(said, 0) from None
                continue
            said = f"{answer.status} {answer.text[:120]}"
            if answer.status in (_UNTOUCHED if acting else _BUSY):
                continue
            return _read(answer, f"{self.url}{path}", acting)
        raise InfrastructureError(f"{self.url}{path}: asked {self.tries} times: {said}")

    async def there(self) -> bool:
        """Whether it answers what no agent has had a say in."""
        try:
            return (await asked(self._connected(), "GET", "/", seconds=self.seconds)).status < 500
        except httpx2.HTTPError:
            return False

    def _connected(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                base_url=self.url, timeout=self.seconds, headers=self._headers, verify=trusted()
            )
        return self._client

    async def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def said_of(errors: Any) -> str:
    """What is wrong in each field, of a list as FastAPI and Pydantic write it; of anything else nothing.

    >>> said_of([{"loc": ["body", "count"], "msg": "Field required", "input": {}}])
    'count: Field required'
    """
    if not isinstance(errors, list) or not errors or not all(isinstance(one, dict) for one in errors):
        return ""
    places = [".".join(str(step) for step in one.get("loc") or () if step != "body") for one in errors]
    return "; ".join(
        f"{place or 'all of it'}: {one.get('msg')}" for place, one in zip(places[:5], errors, strict=False)
    )


def reward_of(value: Any, where: str) -> float:
    """A reward a server gave; none is 0.

    Raises:
        InfrastructureError: It is no finite number.
    """
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise InfrastructureError(f"{where}: a reward is {str(value)[:40]!r}, no finite number")
    return float(value)


def flag_of(value: Any, where: str) -> bool:
    """Whether a server says that something is so; where it says nothing, it is not.

    Raises:
        InfrastructureError: It says neither yes nor no.
    """
    if value not in (None, False, True):
        raise InfrastructureError(f"{where}: whether the episode is over is {str(value)[:40]!r}, neither yes nor no")
    return bool(value)


def _read(answer: Answer, where: str, acting: bool) -> Any:
    status = answer.status
    try:
        value = answer.json() if answer.content else None
    except (ValueError, RecursionError):
        value = None
        if status < 400:
            raise InfrastructureError(f"{where}: its answer is no JSON: {answer.text[:80]!r}") from None
    error = value.get("error") or value.get("detail") if isinstance(value, dict) else None
    error = said_of(error) or error
    failed = isinstance(value, dict) and bool(value.get("error"))
    if acting and (failed if status < 400 else status not in _OURS):
        raise Refused(str(error or answer.text)[:2000], status)
    if status in (404, 409):
        raise (UnknownThere if status == 404 else EpisodeError)(f"{where}: {error or status}")
    if status == 422:
        raise TaskError(f"{where}: {error or answer.text[:120]}")
    if status >= 400 or failed:
        raise InfrastructureError(f"{where}: {status} {error or answer.text[:120]}")
    return value
