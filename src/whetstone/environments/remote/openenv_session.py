"""Session on an OpenEnv server: its WebSocket, one request at a time, and the attribution of errors.

An action that the environment cannot parse returns `VALIDATION_ERROR`, an exception of the environment returns
`EXECUTION_ERROR`. An error that cannot be serialized ends the session, and an action that never returns has no answer.
After each of these but the first, the client sends a request that does not depend on the agent. If the server answers
it, the agent reads the error.

A full server reports `CAPACITY_REACHED` and closes the connection before it reads the first request. The report is
then the answer of a request that cannot be sent.

Note:
    A late answer would be read as that of the next request. A connection on which an error occurred is therefore
    never used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from whetstone.environments.remote.http_client import RequestRefusedError, format_field_errors
from whetstone.errors import InfrastructureError
from whetstone.json_lines import to_writable

_ANSWERS = {"reset": "observation", "step": "observation", "mcp": "mcp", "state": "state"}
_UNREADABLE = ("VALIDATION_ERROR", "INVALID_JSON")
_RAISED, _SESSION, _FULL, _LATE = "EXECUTION_ERROR", "SESSION_ERROR", "CAPACITY_REACHED", "NO_ANSWER"
_MAX_BYTES = 32 << 20
"""Maximum bytes of an answer."""
_CLOSE_SECONDS = 1.0
"""Time limit in seconds for the server to end a session, and for the closing handshake."""


class OpenEnvSession:
    """WebSocket connection to an OpenEnv server, which holds the state of one episode.

    `OpenEnv` creates it; the connection is opened at the first request.

    Args:
        url: URL of the socket.
        seconds: Timeout of one answer, and of the wait for a server that is full, in seconds.
    """

    def __init__(self, url: str, *, seconds: float) -> None:
        self.url, self.seconds = url, seconds
        self.is_running = False
        """Whether an episode is running."""
        self._socket: Any = None

    async def start_episode(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start an episode and return the response to `reset`.

        A request to a full server is repeated until the timeout.

        Args:
            data: Fields of the message `reset`.

        Raises:
            InfrastructureError: If the server is unavailable, stays full, or refuses.
        """
        until, pause = time.monotonic() + self.seconds, 0.1
        while True:
            try:
                answer = await self.send_message("reset", data)
            except _Full as full:
                await self.close_connection()
                if time.monotonic() + pause > until:
                    raise InfrastructureError(
                        f"{self.url}: the server was full for {self.seconds:g} s: {full}"
                    ) from None
            else:
                self.is_running = True
                return answer
            await asyncio.sleep(pause)
            pause = min(2.0, 2 * pause)

    async def send_message(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send one message and return the data of the response.

        Args:
            kind: Type of the message: `reset`, `step`, `mcp` or `state`.
            data: Fields of the message.

        Raises:
            InfrastructureError: If the server is unavailable, too slow, or its response cannot be parsed.
            RequestRefusedError: If it refuses a `step` but answers other requests, or if the data is nested too deeply.
        """
        message = _encode_message(kind, data)
        if self._socket is None:
            await self._connect()
        try:
            return self._read(kind, await self._exchange(kind, message))
        except _Failed as failed:
            # an exception, or the session is lost: the cause is the server or the action
            if failed.code in (_SESSION, _LATE):
                await self.close_connection()
            if kind == "step" and failed.code in (_RAISED, _SESSION, _LATE) and await self._is_available():
                raise RequestRefusedError(str(failed)[:2000], 422) from None
            await self.close_connection()
            raise InfrastructureError(f"{self.url}: {failed.code}: {failed}") from None
        except InfrastructureError:
            await self.close_connection()
            raise

    async def close_connection(self) -> None:
        """Close the WebSocket and end its episode; do nothing if it is not open.

        The server closes the connection after it released the session, so that the next episode finds it free.
        """
        socket, self._socket, self.is_running = self._socket, None, False
        if socket is not None:
            with contextlib.suppress(Exception):  # the connection may be broken, the server may not respond
                await socket.send(json.dumps({"type": "close"}))
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await socket.wait_closed()
            await socket.close()

    async def _connect(self) -> None:
        """Open the connection.

        Raises:
            InfrastructureError: If the server is unreachable.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            self._socket = await connect(
                self.url, open_timeout=self.seconds, close_timeout=_CLOSE_SECONDS, max_size=_MAX_BYTES
            )
        except (OSError, TimeoutError, ValueError, WebSocketException) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None

    async def _is_available(self) -> bool:
        """Return whether the server answers a request that does not depend on an agent."""
        try:
            if self._socket is None:
                await self._connect()
            self._read("state", await self._exchange("state", _encode_message("state", {})))
        except (_Failed, InfrastructureError):
            return False
        return True

    async def _exchange(self, kind: str, message: str) -> Any:
        """Send one message and return the parsed JSON of the response.

        Raises:
            InfrastructureError: If the connection is lost, or the response is not JSON.
            _Failed: If there is no response in time.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            with contextlib.suppress(ConnectionClosed):  # the server's reason, if any, is still in the buffer
                await self._socket.send(message)
            async with asyncio.timeout(self.seconds):
                return json.loads(await self._socket.recv())
        except TimeoutError:
            raise _Failed(_LATE, f"no answer to `{kind}` within {self.seconds:g} s") from None
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None
        except Exception as error:
            raise InfrastructureError(f"{self.url}: the connection is lost: {error}") from None

    def _read(self, kind: str, answer: Any) -> Mapping[str, Any]:
        """Return the data of a response, or raise its error.

        Raises:
            InfrastructureError: If the response is invalid.
            RequestRefusedError: If the server cannot parse the action.
            _Full: If the server has its maximum number of sessions.
            _Failed: If the server reports another error.
        """
        content = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(content, Mapping) or answer.get("type") not in (_ANSWERS[kind], "error"):
            raise InfrastructureError(f"{self.url}: the response to `{kind}` is invalid: {str(answer)[:80]}")
        if answer["type"] != "error":
            return content
        code, text = str(content.get("code")), format_field_errors(content.get("errors")) or str(content.get("message"))
        if kind == "step" and code in _UNREADABLE:
            raise RequestRefusedError(text[:2000], 422)
        if kind == "reset" and code == _FULL:
            raise _Full(text)
        raise _Failed(code, text)


def _encode_message(kind: str, data: Mapping[str, Any]) -> str:
    """Return a message as JSON.

    Raises:
        InfrastructureError: If the data of a task is nested too deeply.
        RequestRefusedError: If an action is nested too deeply.
    """
    try:
        return json.dumps({"type": kind} if kind == "state" else {"type": kind, "data": to_writable(data)})
    except RecursionError:
        why = f"the JSON of `{kind}` is nested too deeply"
    raise RequestRefusedError(why, 422) if kind == "step" else InfrastructureError(why)


class _Full(Exception):
    """The OpenEnv server has its maximum number of sessions."""


class _Failed(Exception):
    """The server reports an error, whose cause can be the server or the action."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
