"""Which connection to an MCP server does an episode get? One all have, one started ahead, or one of its own.

A server that was started costs seconds and a core before it answers. So one that remembers nothing is shared by all
episodes; of one that remembers, each episode has its own, which was started while another was played, and no two start
where there is no core for them.

Easy to get wrong: the SDK's connection belongs to the task that opened it. So each lives in a task of its own, and
episodes, whose tasks come and go, only send to it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from whetstone.errors import InfrastructureError, ToolError, explained, innermost
from whetstone.network import Answer
from whetstone.tools.backend_failures import BackendError
from whetstone.tools.blame import blamed
from whetstone.tools.mcp_sdk import sdk
from whetstone.tools.mcp_transports import UNAVAILABLE, HttpTransport, ProcessTransport

_MOST_TOOLS = 2000
"""Of a server; one that lists more pages than that does not end."""


class ServerEndedError(InfrastructureError):
    """A server ended while it started or answered; the call may have brought that about."""


class Connection:
    """A client in a task of its own.

    Args:
        server: A transport, or a server of the SDK in this process.
        turn: Held while it starts.
        seconds: How long starting may take, from when it is its turn.
    """

    def __init__(self, server: Any, *, turn: asyncio.Semaphore, seconds: float) -> None:
        self.server = server
        self._seconds = seconds
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._tools: asyncio.Task[list[Any]] | None = None
        self._life = asyncio.create_task(self._lived(server, turn, seconds))

    @property
    def over(self) -> bool:
        """Whether nobody can be asked over it any more."""
        return self._life.done()

    async def listed(self) -> list[Any]:
        """Every tool, page by page; asked once.

        Raises:
            InfrastructureError: The server does not start, is gone, or does not come to an end.
        """
        client = await asyncio.shield(self._client)
        if self._tools is None or (self._tools.done() and (self._tools.cancelled() or self._tools.exception())):
            self._tools = asyncio.create_task(self._list(client))
        return await asyncio.shield(self._tools)

    async def called(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the server's answer to a call.

        Raises:
            ServerEndedError: The server ended in the middle of the call.
            InfrastructureError: The session was lost before the call reached the server, or the server is down. A
                connection whose session is lost is over.
            ToolError: The server rejects the call.
        """
        client = await asyncio.shield(self._client)
        return await self._asked(client.call_tool(name, dict(arguments)))

    async def end(self) -> None:
        """Hang up and wait until that is done."""
        self._over.set()
        if not self._client.done():
            self._life.cancel()
        await asyncio.wait({self._life})

    async def _lived(self, server: Any, turn: asyncio.Semaphore, seconds: float) -> None:
        try:
            await turn.acquire()
            try:
                async with asyncio.timeout(seconds) as starting, sdk().Client(server) as client:
                    starting.reschedule(None)
                    turn.release()
                    self._client.set_result(client)
                    await self._over.wait()
            finally:
                if not self._client.done():
                    turn.release()
        except TimeoutError:
            self._failed(f"did not answer within {seconds:g} s")
        except asyncio.CancelledError:
            self._failed("was hung up before it answered")
        except Exception as error:
            if isinstance(server, ProcessTransport):
                why = server.last_error or (explained(error) if isinstance(error, OSError) else "")
                self._failed(f"ended before it answered{why and f': {why}'}", ServerEndedError)
            else:
                self._failed(f"no connection: {explained(error)}")

    def _failed(self, why: str, kind: type[InfrastructureError] = InfrastructureError) -> None:
        if not self._client.done():
            self._client.set_exception(kind(why))
            self._client.exception()  # whoever waits is told; where nobody does, it is no news

    async def _list(self, client: Any) -> list[Any]:
        found, cursor, cursors = [], None, {None}
        while True:
            page = await self._asked(client.list_tools(cursor=cursor))
            found += page.tools
            cursor = page.next_cursor
            if cursor is not None and cursor in cursors:
                raise InfrastructureError(f"its list of tools does not end: it sends the cursor {cursor[:40]!r} again")
            cursors.add(cursor)
            if len(found) > _MOST_TOOLS:
                raise InfrastructureError(f"it lists more than {_MOST_TOOLS} tools")
            if cursor is None:
                return found

    async def _asked(self, question: Any) -> Any:
        if self.over:
            question.close()
            raise InfrastructureError("MCP: the connection is closed")
        http = self.server if isinstance(self.server, HttpTransport) else None
        sent = http.requests if http is not None else 0
        asking = asyncio.ensure_future(question)
        try:
            done, _ = await asyncio.wait({asking, self._life}, return_when=asyncio.FIRST_COMPLETED)
            if asking in done:
                return asking.result()
            cause: BaseException = ServerEndedError("MCP: the server ended in the middle of a call")
        except Exception as error:
            cause = innermost(error)
        finally:
            asking.cancel()
        ended = self.over or (isinstance(cause, sdk().MCPError) and cause.code == sdk().types.CONNECTION_CLOSED)
        if http is not None and (http.lost or (ended and http.requests == sent)):
            await self.end()
            raise InfrastructureError(f"MCP: the session is lost: {http.lost or 'the server closed it'}")
        if isinstance(cause, sdk().MCPError):
            if cause.code == UNAVAILABLE:
                failure = f"MCP: {cause.message}"
                raise BackendError(
                    failure, blame=functools.partial(blamed, failure, self._answer_plainly), **cause.data
                ) from None
            raise ServerEndedError(f"MCP: {cause.message}") if ended else ToolError(cause.message)
        if isinstance(cause, OSError | RuntimeError | httpx2.HTTPError) or _of_streams(cause):
            raise ServerEndedError(f"MCP: {explained(cause)}")
        raise cause

    async def _answer_plainly(self) -> Answer:
        """Return whether the server still lists its tools, as a status of HTTP."""
        try:
            client = await self._client
            async with asyncio.timeout(self._seconds):
                await client.session.list_tools()
        except Exception as error:
            raise httpx2.RequestError(explained(error)) from None
        return Answer(200, httpx2.Headers(), b"")


class Connections:
    """Those of one event loop; a key names a server with all it is started with."""

    def __init__(self) -> None:
        self.reads_only: dict[str, bool] = {}
        """By key and the tools wanted of it, whether all of them say that they change nothing, once that is known."""
        self.started = 0
        """Connections made so far."""
        self.found_ready = 0
        """Of those nobody else had, how many had been started ahead."""
        self.answered: set[str] = set()
        """Keys of servers that have listed their tools."""
        self.failures: dict[str, list[str]] = {}
        """By key, the errors of the attempts to start a process that has never answered."""
        self._had: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self._shared: dict[str, Connection] = {}
        self._ahead: dict[str, list[Connection]] = {}
        self._learning: dict[str, asyncio.Lock] = {}
        self._turn = asyncio.Semaphore(os.cpu_count() or 1)

    def learning(self, key: str) -> asyncio.Lock:
        """Held by the episode that finds out what a server is like."""
        return self._learning.setdefault(key, asyncio.Lock())

    def shared(self, key: str, start: Start) -> Connection:
        """The one all episodes have; started anew where it is gone."""
        if key not in self._shared or self._shared[key].over:
            self._shared[key] = self._start(start)
        return self._shared[key]

    def share(self, key: str, connection: Connection) -> None:
        """From here on, this is the one all episodes have."""
        self._shared[key] = connection

    def own(self, key: str, start: Start) -> Connection:
        """One nobody else has: started ahead where there is such a one."""
        self._had[key] = self._had.get(key, 0) + 1
        self._open[key] = self._open.get(key, 0) + 1
        self._peak[key] = max(self._peak.get(key, 0), self._open[key])
        while self._ahead.get(key):
            ready = self._ahead[key].pop()
            if not ready.over:
                self.found_ready += 1
                return ready
        return self._start(start)

    def left(self, key: str) -> None:
        """One that nobody else had is not that any more."""
        self._open[key] -= 1

    def start_ahead(self, key: str, start: Start, most: int) -> None:
        """Start one for the next episode, unless so many wait already.

        Only where episodes come one behind another: where there were more of them than at once.
        """
        if self._had.get(key, 0) <= self._peak.get(key, 0):
            return
        waiting = [one for one in self._ahead.get(key, ()) if not one.over]
        self._ahead[key] = waiting if len(waiting) >= most else [self._start(start), *waiting]

    def _start(self, start: Start) -> Connection:
        self.started += 1
        return start(self._turn)


Start = Callable[[asyncio.Semaphore], Connection]
_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = weakref.WeakKeyDictionary()


def connections() -> Connections:
    """Those of the running loop."""
    return _of_loops.setdefault(asyncio.get_running_loop(), Connections())


def changes_nothing(tool: Any) -> bool:
    """Whether a listed tool declares that it only reads."""
    return bool(tool.annotations is not None and tool.annotations.read_only_hint)


def _of_streams(error: BaseException) -> bool:
    return type(error).__module__.startswith("anyio")
