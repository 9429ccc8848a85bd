"""One question to a server over HTTP: asked within a deadline, again where it is busy, and its failures told apart.

Easy to get wrong: an error that comes back with status 200 and `{"error": …}` is an error all the same; and a server
that is down is no answer the agent could learn from.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from whetstone.errors import EpisodeError, InfrastructureError, TaskError

_BUSY = (408, 425, 429, 502, 503, 504)


class Asking:
    """A connection to a server.

    Args:
        url: Where it is.
        seconds: How long one answer may take.
        tries: How often a busy or unreachable server is asked.
    """

    def __init__(self, url: str, *, seconds: float = 60.0, tries: int = 3) -> None:
        self.url, self.seconds, self.tries = url.rstrip("/"), seconds, tries
        self._client: httpx2.AsyncClient | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers, as JSON.

        Raises:
            InfrastructureError: It is not there, stays busy, or answers what cannot be read.
            EpisodeError: It says that the episode is not there or not in the state for it (404, 409).
            TaskError: It does not know the task (422).
        """
        self._client = self._client or httpx2.AsyncClient(base_url=self.url, timeout=self.seconds)
        said = ""
        for attempt in range(self.tries):
            if attempt:
                await asyncio.sleep(min(5.0, 0.1 * 4**attempt))
            try:
                answer = await self._client.request(method, path, **({} if body is None else {"json": body}))
            except httpx2.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
                continue
            said = f"{answer.status_code} {answer.text[:120]}"
            if answer.status_code in _BUSY:
                continue
            return _read(answer, f"{self.url}{path}")
        raise InfrastructureError(f"{self.url}{path}: asked {self.tries} times: {said}")

    async def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _read(answer: Any, where: str) -> Any:
    try:
        value = answer.json() if answer.content else None
    except ValueError:
        value = None
        if answer.status_code < 400:
            raise InfrastructureError(f"{where}: its answer is no JSON: {answer.text[:80]!r}") from None
    error = value.get("error") or value.get("detail") if isinstance(value, dict) else None
    if answer.status_code in (404, 409):
        raise EpisodeError(f"{where}: {error or answer.status_code}")
    if answer.status_code == 422:
        raise TaskError(f"{where}: {error or answer.text[:120]}")
    if answer.status_code >= 400 or (isinstance(value, dict) and value.get("error")):
        raise InfrastructureError(f"{where}: {answer.status_code} {error or answer.text[:120]}")
    return value
