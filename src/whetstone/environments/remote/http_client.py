"""HTTP client for environment servers: requests with a deadline, retries if the server is busy, and typed failures.

Note:
    A response with status 200 and `{"error": …}` is an error. An unavailable server is not an observation that the
    agent could learn from. A server that refuses an invalid action has not failed.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx2

from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.json_lines import to_writable
from whetstone.network import BoundedResponse, fetch_bounded, ssl_context

_BUSY = (408, 425, 429, 502, 503, 504)
"""Statuses of busy servers, after which a request is repeated."""
_NOT_EXECUTED = (425, 429, 503)
"""Statuses of busy servers that guarantee that nothing was executed."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""Exceptions of a request that did not reach the server."""
_CREDENTIALS = (401, 402, 403, 407)
"""Refusals that concern the client's credentials, not the request."""


class RequestRefusedError(Exception):
    """Refusal of an agent's action by the server; the agent may read its text.

    Args:
        text: Reason of the refusal.
        status: Status of the response; 0 if there was none.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status

    @property
    def may_be_server_failure(self) -> bool:
        """Return whether the server may be down, or may have failed on the request.

        True without a response and for a status from 500 on; `JsonHttpClient.is_available` distinguishes the cases.
        """
        return self.status == 0 or self.status >= 500


class NotFoundError(EpisodeError):
    """The server does not know the requested object, such as an episode (status 404)."""


class JsonHttpClient:
    """HTTP client of one environment server, for requests and responses in JSON.

    Args:
        url: URL of the server.
        seconds: Timeout of one request in seconds.
        tries: Maximum number of attempts if the server is busy or unreachable.
        token: Bearer token of every request, if the server requires one.
    """

    def __init__(self, url: str, *, seconds: float = 60.0, tries: int = 3, token: str = "") -> None:
        self.url, self.seconds, self.tries = url.rstrip("/"), seconds, tries
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client: httpx2.AsyncClient | None = None

    async def send_request(self, method: str, path: str, body: Any = None, *, acting: bool = False) -> Any:
        """Send a request and return the JSON of its response.

        A request to a busy or unreachable server is repeated up to `tries` times.

        Args:
            method: HTTP method.
            path: Path below the URL of the server.
            body: JSON of the request; None: no body.
            acting: The request is an action of the agent: the agent reads a refusal, and the request is not repeated if
                it may have been executed.

        Raises:
            InfrastructureError: If the server is unreachable, stays busy, or its response cannot be parsed.
            NotFoundError: If the server does not know the episode (404).
            EpisodeError: If the episode is in another state (409).
            TaskError: If the server does not know the task (422).
            RequestRefusedError: Only if `acting`: the status is 400 to 499 and not about credentials, or the response
                has status 200 and an `error`; also if no response came or the server failed on the request
                (`may_be_server_failure`).
        """
        client = self._get_client()
        problem = ""
        sent = {} if body is None else {"json": to_writable(body)}
        for attempt in range(self.tries):
            if attempt:
                await asyncio.sleep(min(5.0, 0.1 * 4**attempt))
            try:
                answer = await fetch_bounded(client, method, path, seconds=self.seconds, **sent)
            except httpx2.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                if acting and not isinstance(error, _NOT_SENT):
                    raise RequestRefusedError(problem, 0) from None
                continue
            problem = f"{answer.status} {answer.text[:120]}"
            if answer.status in (_NOT_EXECUTED if acting else _BUSY):
                continue
            return _parse_answer(answer, f"{self.url}{path}", acting)
        raise InfrastructureError(f"{self.url}{path}: failed after {self.tries} attempts: {problem}")

    async def is_available(self) -> bool:
        """Return whether the server responds to a request independent of any agent.

        A status from 500 on counts as unavailable.
        """
        try:
            return (await fetch_bounded(self._get_client(), "GET", "/", seconds=self.seconds)).status < 500
        except httpx2.HTTPError:
            return False

    def _get_client(self) -> httpx2.AsyncClient:
        """Return the HTTP client; create it at the first request."""
        if self._client is None:
            self._client = httpx2.AsyncClient(
                base_url=self.url, timeout=self.seconds, headers=self._headers, verify=ssl_context()
            )
        return self._client

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def format_field_errors(errors: Any) -> str:
    """Return the error of each field in a list as FastAPI and Pydantic write it.

    Return an empty text for other values.

    >>> format_field_errors([{"loc": ["body", "count"], "msg": "Field required", "input": {}}])
    'count: Field required'
    """
    if not isinstance(errors, list) or not errors or not all(isinstance(one, dict) for one in errors):
        return ""
    places = [".".join(str(step) for step in one.get("loc") or () if step != "body") for one in errors]
    return "; ".join(
        f"{place or 'all of it'}: {one.get('msg')}" for place, one in zip(places[:5], errors, strict=False)
    )


def parse_reward(value: Any, where: str) -> float:
    """Parse the reward of a response; a missing reward is 0.

    Args:
        value: Value of the response.
        where: URL of the request, for the message.

    Raises:
        InfrastructureError: If the value is not a finite number.
    """
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise InfrastructureError(f"{where}: the reward is {str(value)[:40]!r}, not a finite number")
    return float(value)


def parse_flag(value: Any, where: str) -> bool:
    """Parse a boolean of a response, such as `done`; a missing value is False.

    Args:
        value: Value of the response.
        where: URL of the request, for the message.

    Raises:
        InfrastructureError: If the value is not a boolean.
    """
    if value not in (None, False, True):
        raise InfrastructureError(f"{where}: the flag that ends the episode is {str(value)[:40]!r}, not a boolean")
    return bool(value)


def _parse_answer(answer: BoundedResponse, where: str, acting: bool) -> Any:
    """Return the JSON of a response, or raise the error of its status or its `error`."""
    status = answer.status
    try:
        value = answer.json() if answer.content else None
    except (ValueError, RecursionError):
        value = None
        if status < 400:
            raise InfrastructureError(f"{where}: the response is not JSON: {answer.text[:80]!r}") from None
    error = value.get("error") or value.get("detail") if isinstance(value, dict) else None
    error = format_field_errors(error) or error
    failed = isinstance(value, dict) and bool(value.get("error"))
    if acting and (failed if status < 400 else status not in _CREDENTIALS):
        raise RequestRefusedError(str(error or answer.text)[:2000], status)
    if status in (404, 409):
        raise (NotFoundError if status == 404 else EpisodeError)(f"{where}: {error or status}")
    if status == 422:
        raise TaskError(f"{where}: {error or answer.text[:120]}")
    if status >= 400 or failed:
        raise InfrastructureError(f"{where}: {status} {error or answer.text[:120]}")
    return value
