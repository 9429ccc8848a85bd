"""Client of OpenAI-compatible chat completions, with retries.

Note:
    A server that is down, overloaded or returns no completion has not returned an empty answer. The request is repeated
    with increasing delays, and then raises `InfrastructureError`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from whetstone.errors import InfrastructureError, RecipeError
from whetstone.masking import remember_secret
from whetstone.network import fetch_bounded

_BUSY = (408, 409, 425, 429, 500, 502, 503, 504)
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Completion:
    """Chat completion that a server returned."""

    message: Mapping[str, Any]
    """Assistant message in the OpenAI format; `content` may be null if the message has tool calls."""
    finish: str = "stop"
    """Finish reason of the server: `stop`, `length` or `tool_calls`."""
    prompt_tokens: int = 0
    """Number of prompt tokens; 0 if the server does not report it."""
    completion_tokens: int = 0
    """Number of sampled tokens; 0 if the server does not report it."""
    tries: int = 1
    """Number of requests that were sent for the completion, retries included."""

    @property
    def text(self) -> str:
        """Text of the message; empty if `content` is null."""
        return str(self.message.get("content") or "")


def read_api_key(variable: str) -> str:
    """Return the API key from an environment variable, and mask it in all later output.

    Args:
        variable: Name of the environment variable; empty if the endpoint needs no key.

    Raises:
        RecipeError: If the variable is not set.
    """
    if variable and variable not in os.environ:
        raise RecipeError(f"api_key_env: the environment variable {variable} is not set")
    if variable:
        remember_secret(os.environ[variable], f"${{{variable}}}")
    return os.environ[variable] if variable else ""


class ChatEndpoint:
    """Client of one model at an OpenAI-compatible server.

    Judges, user simulators and model tools use it. It can be used from several event loops, one after another.

    Args:
        url: Base URL of the API, such as `http://localhost:8000/v1`.
        model: Name of the model at the server.
        key: Bearer token; empty: none.
        seconds: Timeout of one request in seconds.
        tries: Maximum number of requests for one completion.
        concurrency: Maximum number of requests in flight.
        pause: Seconds before the first retry; doubled each time, at most 30, and at least the delay that the server
            requests.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        seconds: float = 60.0,
        tries: int = 4,
        concurrency: int = 16,
        pause: float = 0.5,
    ) -> None:
        self.url, self.model, self.tries, self.pause = url.rstrip("/"), model, tries, pause
        self._seconds, self._concurrency = seconds, concurrency
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: httpx2.AsyncClient | None = None
        self._places = asyncio.Semaphore(concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def complete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Request the next message of a conversation, with retries.

        Args:
            messages: Conversation in the OpenAI format.
            options: Further fields of the request, such as `temperature`, `tools`, `response_format`.

        Raises:
            InfrastructureError: If the server cannot be reached, rejects the request, or never returns a completion.
        """
        self._client_for_loop()
        body = {"model": self.model, "messages": list(messages), **options}
        problem, pause = "", self.pause
        for attempt in range(1, self.tries + 1):
            async with self._places:
                answer, problem, wait = await self._request(body)
            if answer is not None:
                return _completion(answer, attempt)
            if wait is None:
                break
            if attempt < self.tries:
                await asyncio.sleep(min(_LONGEST_PAUSE, max(pause, wait)))
                pause *= 2
        remedy = "; start its server or correct the url" if "ConnectError" in problem else ""
        raise InfrastructureError(f"the request to the model at {self.url} failed: {problem}{remedy}")

    async def close(self) -> None:
        """Close the connections to the server; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def _client_for_loop(self) -> None:
        """Create an HTTP client for the running event loop if there is none, because connections belong to a loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._client = loop, None
            self._places = asyncio.Semaphore(self._concurrency)
        self._client = self._client or httpx2.AsyncClient(timeout=self._seconds, headers=self._headers)

    async def _request(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str, float | None]:
        """Send one request.

        Returns:
            (response body if it is a completion, else None; problem; seconds before a retry, or None if a retry cannot
            help).
        """
        assert self._client is not None
        try:
            answer = await fetch_bounded(
                self._client, "POST", f"{self.url}/chat/completions", seconds=self._seconds, json=body
            )
        except httpx2.HTTPError as error:
            return None, f"{type(error).__name__}: {error}", 0.0
        if answer.status == 200:
            try:
                read = answer.json()
                if isinstance(read["choices"][0]["message"], Mapping):
                    return read, "", None
            except (ValueError, KeyError, IndexError, TypeError):
                pass
            return None, f"it returned {answer.text[:80]!r}, which is not a chat completion", 0.0
        problem = f"status {answer.status}: {answer.text[:80]}"
        if answer.status not in _BUSY:
            return None, problem, None
        try:
            return None, problem, float(answer.headers.get("retry-after", 0))
        except ValueError:
            return None, problem, 0.0


def _completion(read: Mapping[str, Any], tries: int) -> Completion:
    choice, usage = read["choices"][0], read.get("usage") or {}
    return Completion(
        choice["message"],
        str(choice.get("finish_reason") or "stop"),
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        tries,
    )
