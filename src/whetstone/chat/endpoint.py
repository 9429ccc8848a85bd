"""A model behind any OpenAI-compatible address: one completion of a conversation, asked again where that may help.

Easy to get wrong: a server that is down, too busy or says what is no completion has not answered with nothing. It is
asked again with growing pauses, and then it is a failure of infrastructure.
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
from whetstone.network import asked

_BUSY = (408, 409, 425, 429, 500, 502, 503, 504)
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model said."""

    message: Mapping[str, Any]
    """In the OpenAI shape; `content` may be null where it calls tools."""
    finish: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tries: int = 1
    """How often it was asked."""

    @property
    def text(self) -> str:
        """What it said in words."""
        return str(self.message.get("content") or "")


def key_in(variable: str) -> str:
    """The key an environment variable holds; none where no variable is named.

    Raises:
        RecipeError: It is not set.
    """
    if variable and variable not in os.environ:
        raise RecipeError(f"api_key_env: the environment variable {variable} is not set")
    if variable:
        remember_secret(os.environ[variable], f"${{{variable}}}")
    return os.environ[variable] if variable else ""


class ChatEndpoint:
    """Asks one model.

    Args:
        url: Where the API begins, such as `http://localhost:8000/v1`.
        model: Its name there.
        key: Sent as a bearer token; empty: none.
        seconds: How long one answer may take.
        tries: How often it is asked before that is a failure.
        concurrency: Questions under way at once.
        pause: Seconds before it is asked again; twice as long each time, and as long as the server says where it does.
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
        """The next message of a conversation.

        Args:
            options: Of the request, such as `temperature`, `tools`, `response_format`.

        Raises:
            InfrastructureError: It could not be asked, or never answered with a completion.
        """
        self._here()
        body = {"model": self.model, "messages": list(messages), **options}
        said, pause = "", self.pause
        for attempt in range(1, self.tries + 1):
            async with self._places:
                answer, said, wait = await self._asked(body)
            if answer is not None:
                return _completion(answer, attempt)
            if wait is None:
                break
            if attempt < self.tries:
                await asyncio.sleep(min(_LONGEST_PAUSE, max(pause, wait)))
                pause *= 2
        remedy = "; start its server or correct the url" if "ConnectError" in said else ""
        raise InfrastructureError(f"the model at {self.url} could not be asked: {said}{remedy}")

    async def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def _here(self) -> None:
        """Connections belong to the loop they were made in."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._client = loop, None
            self._places = asyncio.Semaphore(self._concurrency)
        self._client = self._client or httpx2.AsyncClient(timeout=self._seconds, headers=self._headers)

    async def _asked(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str, float | None]:
        """(the answer, if it is one; what was wrong; seconds to wait before asking again, None: it is no use)"""
        assert self._client is not None
        try:
            answer = await asked(self._client, "POST", f"{self.url}/chat/completions", seconds=self._seconds, json=body)
        except httpx2.HTTPError as error:
            return None, f"{type(error).__name__}: {error}", 0.0
        if answer.status == 200:
            try:
                read = answer.json()
                if isinstance(read["choices"][0]["message"], Mapping):
                    return read, "", None
            except (ValueError, KeyError, IndexError, TypeError):
                pass
            return None, f"it answered {answer.text[:80]!r}, which is no chat completion", 0.0
        said = f"status {answer.status}: {answer.text[:80]}"
        if answer.status not in _BUSY:
            return None, said, None
        try:
            return None, said, float(answer.headers.get("retry-after", 0))
        except ValueError:
            return None, said, 0.0


def _completion(read: Mapping[str, Any], tries: int) -> Completion:
    choice, usage = read["choices"][0], read.get("usage") or {}
    return Completion(
        choice["message"],
        str(choice.get("finish_reason") or "stop"),
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        tries,
    )
