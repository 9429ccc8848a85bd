"""How is a server reached, and when is it dead? One answer of its own is believed, and a process that has ended.

Easy to get wrong: a question that failed does not mean that the server is dead, and one that hangs says nothing at all.
Its health is asked before it is given up, and another is only started where it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.server_process import ServerProcess
from whetstone.network import Answer, asked

_SECONDS_FOR_HEALTH = 10.0
_SECONDS_BETWEEN_LOOKS = 0.5
_MOST_SHOWN = 300


class Connection:
    """A server at an address, and its process where we start it.

    Args:
        server: What kind it is, for messages.
        address: Where it listens.
        start: Starts it; None: it is there.
        key: Sent as a bearer token; empty: none.
        seconds: How long one answer may take.
        start_seconds: How long it may take to start.
    """

    def __init__(
        self,
        server: str,
        *,
        address: str,
        start: Callable[[], ServerProcess] | None,
        key: str,
        seconds: float,
        start_seconds: float,
    ) -> None:
        self.server, self.address = server, address
        self.seconds, self.start_seconds = seconds, start_seconds
        self.dead = ""
        """Why it cannot answer any more; empty: it can."""
        self._start = start
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: httpx2.AsyncClient | None = None
        self._process: ServerProcess | None = None
        self._answered = False

    @property
    def alive(self) -> bool:
        """Whether it can answer."""
        if not self.dead and self._process is not None and self._process.ended:
            self.die(f"the {self.server} server ended: {self._process.last_words}")
        return not self.dead

    def die(self, why: str) -> None:
        """It answers no more; one that we started is killed."""
        self.dead = self.dead or why
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Let go of it; one that we started is ended."""
        self.dead = self.dead or "the engine is closed"
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        if self._process is not None:
            await asyncio.to_thread(self._process.end)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Answer:
        """One question to the server, whatever it answers.

        Raises:
            InfrastructureError: There was no answer. The engine is dead if the server is.
        """
        if self._client is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx2.AsyncClient(timeout=self.seconds, headers=self._headers, limits=limits)
        sent: dict[str, Any] = {"params": query} if query else {}
        if body is not None:
            sent["json"] = body
        try:
            return await asked(self._client, method, f"{self.address}{path}", seconds=self.seconds, **sent)
        except httpx2.HTTPError as error:
            await self._examine()
            why = self.dead or f"{type(error).__name__}: {error}".rstrip(": ")
            raise InfrastructureError(f"the {self.server} server at {self.address} did not answer: {why}") from None

    async def told(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        """The JSON of an answer that is a success.

        Raises:
            EngineError: The server refuses the question.
            InfrastructureError: It failed, or there was no answer.
        """
        answer = await self.ask(method, path, body, **query)
        said = self.described(path, answer)
        if answer.status >= 500:
            await self._examine()
            raise InfrastructureError(said)
        if answer.status >= 300:
            raise EngineError(said)
        if not answer.content:
            return {}
        try:
            return answer.json()
        except ValueError:
            raise InfrastructureError(said) from None

    def described(self, path: str, answer: Answer) -> str:
        """What it answered, in a line."""
        return f"the {self.server} server at {self.address} answered {path} with {answer.status}: {_message(answer)}"

    def strange(self, said: str) -> EngineError:
        """An error about what the server is."""
        return EngineError(f"the {self.server} server at {self.address} {said}")

    async def until_it_answers(self, *, again: bool) -> None:
        """Wait for one that we start; one that was said to be there is asked once.

        Args:
            again: Whether another was there before it; then one that ends at once is no fault of who described it.

        Raises:
            EngineError: It ended before it answered.
            InfrastructureError: It did so though another ran before, or nobody answers.
        """
        if self._start is not None and self._process is None:
            self._process = self._start()
        end = time.monotonic() + (self.start_seconds if self._process is not None else 0.0)
        while not await self._healthy():
            if self._process is not None and self._process.ended:
                said = f"the {self.server} server ended before it answered: {self._process.last_words}"
                raise InfrastructureError(said) if again else EngineError(said)
            if time.monotonic() >= end:
                within = f" within {self.start_seconds:g} s" if self._process is not None else ""
                raise InfrastructureError(f"no {self.server} server answers at {self.address}{within}")
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        self._answered = True

    async def _healthy(self) -> bool:
        async with httpx2.AsyncClient(timeout=_SECONDS_FOR_HEALTH, headers=self._headers) as client:
            try:
                answer = await asked(client, "GET", f"{self.address}/health", seconds=_SECONDS_FOR_HEALTH)
            except httpx2.HTTPError:
                return False
        return answer.status == 200

    async def _examine(self) -> None:
        """See whether the server is dead after something went wrong."""
        if self.alive and self._answered and not await self._healthy():
            why = self._process.last_words if self._process is not None else "its health is not good"
            self.die(f"the {self.server} server at {self.address} is dead: {why}")


def _message(answer: Answer) -> str:
    """What an error says, in a line."""
    try:
        read = answer.json()
        error = read.get("error", read) if isinstance(read, dict) else read
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except ValueError:
        text = answer.text
    return " ".join(text.split())[:_MOST_SHOWN] or "nothing"
