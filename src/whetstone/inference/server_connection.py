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
    """HTTP connection to an inference server, and its process if the engine starts the server.

    Created by `ServerEngine`.

    Args:
        server: Kind of server, for messages: `vLLM` or `SGLang`.
        address: URL of the server, without a slash at the end.
        start: Starts the server process; None: the server is already running.
        key: API key, sent as a bearer token; empty: none.
        seconds: Timeout of one request, in seconds.
        start_seconds: Timeout of the start of the server, in seconds.
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
        """Reason why the server cannot respond any more; empty while it can."""
        self._start = start
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: httpx2.AsyncClient | None = None
        self._process: ServerProcess | None = None
        self._answered = False

    @property
    def alive(self) -> bool:
        """Whether the server can respond.

        False after `mark_dead` and after the server process has exited.
        """
        if not self.dead and self._process is not None and self._process.has_exited:
            self.mark_dead(f"the {self.server} server exited: {self._process.last_words}")
        return not self.dead

    def mark_dead(self, why: str) -> None:
        """Mark the server as dead, and kill its process if this engine started it.

        Args:
            why: Reason, for the errors of later requests; the first reason is kept.
        """
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
        """Send one HTTP request and return the response, whatever its status.

        Args:
            method: HTTP method.
            path: Path after the address.
            body: JSON body; None: no body.
            query: Query parameters.

        Raises:
            InfrastructureError: If there is no response. If the health check also fails, the server is marked dead.
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
        """Send one HTTP request and return the JSON of a successful response.

        An empty response is returned as `{}`.

        Args:
            method: HTTP method.
            path: Path after the address.
            body: JSON body; None: no body.
            query: Query parameters.

        Raises:
            EngineError: If the server rejects the request (status 300 to 499).
            InfrastructureError: If the server fails (status 500 or higher), does not respond, or returns invalid JSON.
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
        """Describe the status and message of a response in one line, for an error."""
        return (
            f"the {self.server} server at {self.address} responded to {path} with {answer.status}: {_message(answer)}"
        )

    def build_error(self, problem: str) -> EngineError:
        """Return an error that names the server and its address before the problem.

        Args:
            problem: Predicate of the sentence: "returns no log-probs".
        """
        return EngineError(f"the {self.server} server at {self.address} {problem}")

    async def wait_until_ready(self, *, is_restart: bool) -> None:
        """Start the server if necessary, and wait until it responds to a health check.

        A server that is already running is checked once.

        Args:
            is_restart: Whether another server ran before. If so, an early exit counts as a failure of the
                infrastructure, not of the configuration.

        Raises:
            EngineError: If the server process exits before it responds.
            InfrastructureError: If it exits and `is_restart` is set, or if no server responds in time.
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
                raise InfrastructureError(
                    f"no {self.server} server responds at {self.address}{within}; "
                    "check the address, and start the server"
                )
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
        """Check the health of the server after a failed request, and mark it dead if it does not respond."""
        if self.alive and self._answered and not await self._healthy():
            why = self._process.last_words if self._process is not None else "its health check failed"
            self.mark_dead(f"the {self.server} server at {self.address} is dead: {why}")


def _message(answer: BoundedResponse) -> str:
    """Return the error message of a response in one line of at most 300 characters."""
    try:
        read = answer.json()
        error = read.get("error", read) if isinstance(read, dict) else read
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except ValueError:
        text = answer.text
    return " ".join(text.split())[:_MOST_SHOWN] or "nothing"
