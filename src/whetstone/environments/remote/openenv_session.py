"""A session on an OpenEnv server: its socket, one question at a time, and whose fault an error is.

An action the environment cannot read comes back as `VALIDATION_ERROR`, one it raises on as `EXECUTION_ERROR`; one whose
error cannot be written ends the session, and one that never ends has no answer. Behind each but the first the server is
asked something no agent has had a say in, and where it answers, the agent is told.

Easy to get wrong: an answer that comes too late is read as that to the next question. So a connection on which anything
went wrong is never asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from whetstone.environments.remote.http_client import Refused, said_of
from whetstone.errors import InfrastructureError
from whetstone.json_lines import writable

_ANSWERS = {"reset": "observation", "step": "observation", "mcp": "mcp", "state": "state"}
_UNREADABLE = ("VALIDATION_ERROR", "INVALID_JSON")
_RAISED, _SESSION, _FULL, _LATE = "EXECUTION_ERROR", "SESSION_ERROR", "CAPACITY_REACHED", "NO_ANSWER"
_MOST_BYTES = 32 << 20
"""Of an answer."""


class OpenEnvSession:
    """A connection, made where it is first needed.

    Args:
        url: Of the socket.
        seconds: How long one answer may take, and how long a server that is full is waited for.
    """

    def __init__(self, url: str, *, seconds: float) -> None:
        self.url, self.seconds = url, seconds
        self.under_way = False
        """Whether an episode was begun, and nothing has ended it since."""
        self._socket: Any = None

    async def begin(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a reset says.

        Raises:
            InfrastructureError: The server is not there, stays full, or would not.
        """
        until, pause = time.monotonic() + self.seconds, 0.1
        while True:
            try:
                said = await self.ask("reset", data)
            except _Full as full:
                await self.end()
                if time.monotonic() + pause > until:
                    raise InfrastructureError(f"{self.url}: full for {self.seconds:g} s: {full}") from None
            else:
                self.under_way = True
                return said
            await asyncio.sleep(pause)
            pause = min(2.0, 2 * pause)

    async def ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the server says to one message.

        Raises:
            InfrastructureError: It is not there, answers too late, or what cannot be read.
            Refused: It would not take a `step`, and answers other questions.
        """
        if self._socket is None:
            await self._connect()
        try:
            return self._read(kind, await self._answered(kind, data))
        except _Failed as failed:
            # raised on what it was told to do, or lost the session over it: was it down, or was it the action?
            if failed.code in (_SESSION, _LATE):
                await self.end()
            if kind == "step" and failed.code in (_RAISED, _SESSION, _LATE) and await self._there():
                raise Refused(str(failed)[:2000], 422) from None
            await self.end()
            raise InfrastructureError(f"{self.url}: {failed.code}: {failed}") from None
        except InfrastructureError:
            await self.end()
            raise

    async def end(self) -> None:
        """Hang up; without a word where nothing is held."""
        socket, self._socket, self.under_way = self._socket, None, False
        if socket is not None:
            with contextlib.suppress(Exception):  # whatever is left of it
                await socket.send(json.dumps({"type": "close"}))
            await socket.close()

    async def _connect(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            self._socket = await connect(self.url, open_timeout=self.seconds, close_timeout=1.0, max_size=_MOST_BYTES)
        except (OSError, TimeoutError, ValueError, WebSocketException) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None

    async def _there(self) -> bool:
        """Whether the server answers what no agent has had a say in."""
        try:
            if self._socket is None:
                await self._connect()
            self._read("state", await self._answered("state", {}))
        except (_Failed, InfrastructureError):
            return False
        return True

    async def _answered(self, kind: str, data: Mapping[str, Any]) -> Any:
        try:
            message = (
                {"type": kind, "data": writable(data)} if kind != "state" else {"type": kind}
            )  # nothing else is taken
            await self._socket.send(json.dumps(message))
            async with asyncio.timeout(self.seconds):
                return json.loads(await self._socket.recv())
        except TimeoutError:
            raise _Failed(_LATE, f"no answer to `{kind}` within {self.seconds:g} s") from None
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None
        except Exception as error:
            raise InfrastructureError(f"{self.url}: the connection is gone: {error}") from None

    def _read(self, kind: str, answer: Any) -> Mapping[str, Any]:
        said = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(said, Mapping) or answer.get("type") not in (_ANSWERS[kind], "error"):
            raise InfrastructureError(f"{self.url}: its answer to `{kind}` is none: {str(answer)[:80]}")
        if answer["type"] != "error":
            return said
        code, text = str(said.get("code")), said_of(said.get("errors")) or str(said.get("message"))
        if kind == "step" and code in _UNREADABLE:
            raise Refused(text[:2000], 422)
        if kind == "reset" and code == _FULL:
            raise _Full(text)
        raise _Failed(code, text)


class _Full(Exception):
    """A server has as many sessions as it may."""


class _Failed(Exception):
    """A server says that something went wrong."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
