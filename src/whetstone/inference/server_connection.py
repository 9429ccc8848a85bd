"""Connection to an inference server: requests, health checks and detection of a dead server.

Note:
    A failed request does not mean that the server is dead, and a hanging server reports nothing. The engine checks the
    server's health before it gives the server up; only then is another one started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.server_process import ServerProcess
from whetstone.network import BoundedResponse, fetch_bounded

_SECONDS_FOR_HEALTH = 10.0
_SECONDS_BETWEEN_LOOKS = 0.5
_MOST_SHOWN = 300


class Connection:
    """A server at an address, and its process if this engine starts it.

    Args:
        server: Kind of server, for messages.
        address: URL of the server.
        start: Starts the server process; None: the server is already running.
        key: Bearer token; empty: none.
        seconds: Timeout of one request.
        start_seconds: Timeout of the start.
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
        """Reason why the server cannot respond any more; empty if it can."""
        self._start = start
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: httpx2.AsyncClient | None = None
        self._process: ServerProcess | None = None
        self._answered = False

    @property
    def alive(self) -> bool:
        """Whether the server can respond."""
        if not self.dead and self._process is not None and self._process.has_exited:
            self.mark_dead(f"the {self.server} server exited: {self._process.last_words}")
        return not self.dead

    def mark_dead(self, why: str) -> None:
        """Mark the server as dead and kill its process if this engine started it."""
        self.dead = self.dead or why
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Close the connection and end the process if this engine started it."""
        self.dead = self.dead or "the engine is closed"
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        if self._process is not None:
            await asyncio.to_thread(self._process.end)

    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str
    ) -> BoundedResponse:
        """Send one request and return the response, whatever its status.

        Raises:
            InfrastructureError: If there is no response. The engine is dead if the server is.
        """
        if self._client is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx2.AsyncClient(timeout=self.seconds, headers=self._headers, limits=limits)
        sent: dict[str, Any] = {"params": query} if query else {}
        if body is not None:
            sent["json"] = body
        try:
            return await fetch_bounded(self._client, method, f"{self.address}{path}", seconds=self.seconds, **sent)
        except httpx2.HTTPError as error:
            await self._examine()
            why = self.dead or f"{type(error).__name__}: {error}".rstrip(": ")
            raise InfrastructureError(f"the {self.server} server at {self.address} did not respond: {why}") from None

    async def request_json(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        """Send one request and return the JSON of a successful response.

        Raises:
            EngineError: If the server rejects the request.
            InfrastructureError: If the server fails or does not respond.
        """
        answer = await self.request(method, path, body, **query)
        text = self.describe_response(path, answer)
        if answer.status >= 500:
            await self._examine()
            raise InfrastructureError(text)
        if answer.status >= 300:
            raise EngineError(text)
        if not answer.content:
            return {}
        try:
            return answer.json()
        except ValueError:
            raise InfrastructureError(text) from None

    def describe_response(self, path: str, answer: BoundedResponse) -> str:
        """Describe a response in one line."""
        return (
            f"the {self.server} server at {self.address} responded to {path} with {answer.status}: {_message(answer)}"
        )

    def build_error(self, problem: str) -> EngineError:
        """Return an error about the kind of server."""
        return EngineError(f"the {self.server} server at {self.address} {problem}")

    async def wait_until_ready(self, *, is_restart: bool) -> None:
        """Wait until a server that this engine starts responds.

        Check a running server once.

        Args:
            is_restart: Whether another server ran before; if so, an early exit is no error of its configuration.

        Raises:
            EngineError: If the server process exits before it responds.
            InfrastructureError: If it does so and `is_restart` is set, or if no server responds.
        """
        if self._start is not None and self._process is None:
            self._process = self._start()
        end = time.monotonic() + (self.start_seconds if self._process is not None else 0.0)
        while not await self._healthy():
            if self._process is not None and self._process.has_exited:
                problem = f"the {self.server} server exited before it responded: {self._process.last_words}"
                raise InfrastructureError(problem) if is_restart else EngineError(problem)
            if time.monotonic() >= end:
                within = f" within {self.start_seconds:g} s" if self._process is not None else ""
                raise InfrastructureError(f"no {self.server} server responds at {self.address}{within}")
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        self._answered = True

    async def _healthy(self) -> bool:
        async with httpx2.AsyncClient(timeout=_SECONDS_FOR_HEALTH, headers=self._headers) as client:
            try:
                answer = await fetch_bounded(client, "GET", f"{self.address}/health", seconds=_SECONDS_FOR_HEALTH)
            except httpx2.HTTPError:
                return False
        return answer.status == 200

    async def _examine(self) -> None:
        """Check after an error whether the server is dead."""
        if self.alive and self._answered and not await self._healthy():
            why = self._process.last_words if self._process is not None else "its health check failed"
            self.mark_dead(f"the {self.server} server at {self.address} is dead: {why}")


def _message(answer: BoundedResponse) -> str:
    """Return the message of an error response in one line."""
    try:
        read = answer.json()
        error = read.get("error", read) if isinstance(read, dict) else read
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except ValueError:
        text = answer.text
    return " ".join(text.split())[:_MOST_SHOWN] or "nothing"
