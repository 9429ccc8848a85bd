"""Connections to MCP servers: shared by all episodes, prewarmed, or one per episode.

Starting a server takes seconds of a core. A server without state is therefore shared by all episodes. With state, each
episode has its own server, which was started while another episode ran. At most one server per core starts at a time.

Note:
    A connection of the SDK belongs to the asyncio task that opened it. Each connection therefore has a dedicated task,
    to which the short-lived tasks of episodes only send requests.
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from whetstone.errors import InfrastructureError, ToolError, root_exception, summarize_exception
from whetstone.network import BoundedResponse
from whetstone.tools.backend_failures import BackendError
from whetstone.tools.mcp_sdk import load_sdk
from whetstone.tools.mcp_transports import UNAVAILABLE, HttpTransport, ProcessTransport
from whetstone.tools.server_health import classify_failure

_MOST_TOOLS = 2000
"""Maximum number of tools of a server; a longer list is treated as endless."""


class ServerEndedError(InfrastructureError):
    """An MCP server ended during its start or during a call; the call may have caused it."""


class McpConnection:
    """Connection to an MCP server: a client of the SDK in a dedicated asyncio task.

    Creating the object starts the connection; `Connections` keeps it.

    Args:
        server: Transport to a server, or a server of the SDK in this process.
        turn: Semaphore that is held during the start, which limits the number of servers that start at a time.
        seconds: Time limit of the start in seconds, without the wait for the semaphore.
    """

    def __init__(self, server: Any, *, turn: asyncio.Semaphore, seconds: float) -> None:
        self.server = server
        self._seconds = seconds
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._tools: asyncio.Task[list[Any]] | None = None
        self._life = asyncio.create_task(self._lived(server, turn, seconds))

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, for any reason."""
        return self._life.done()

    async def list_tools(self) -> list[Any]:
        """Return all tools of the server, fetched page by page; the list is cached.

        Raises:
            InfrastructureError: If the server does not start, has ended, or sends an endless list.
        """
        client = await asyncio.shield(self._client)
        if self._tools is None or (self._tools.done() and (self._tools.cancelled() or self._tools.exception())):
            self._tools = asyncio.create_task(self._list(client))
        return await asyncio.shield(self._tools)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of the server and return its result in the SDK's format.

        Args:
            name: Name of the tool at the server.
            arguments: Validated arguments.

        Raises:
            ServerEndedError: If the server ended during the call.
            InfrastructureError: If the session was lost before the call reached the server, or the server is down. The
                connection of a lost session is closed.
            ToolError: If the server rejects the call.
        """
        client = await asyncio.shield(self._client)
        return await self._request(client.call_tool(name, dict(arguments)))

    async def close(self) -> None:
        """Close the connection and wait until it is closed; a server process ends with it."""
        self._over.set()
        if not self._client.done():
            self._life.cancel()
        await asyncio.wait({self._life})

    async def _lived(self, server: Any, turn: asyncio.Semaphore, seconds: float) -> None:
        try:
            await turn.acquire()
            try:
                async with asyncio.timeout(seconds) as starting, load_sdk().Client(server) as client:
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
                why = server.last_error or (summarize_exception(error) if isinstance(error, OSError) else "")
                self._failed(f"ended before it answered{why and f': {why}'}", ServerEndedError)
            else:
                self._failed(f"no connection: {summarize_exception(error)}")

    def _failed(self, why: str, kind: type[InfrastructureError] = InfrastructureError) -> None:
        if not self._client.done():
            self._client.set_exception(kind(why))
            self._client.exception()  # waiting callers receive it; without any, asyncio must not log it as unretrieved

    async def _list(self, client: Any) -> list[Any]:
        tools, cursor, cursors = [], None, {None}
        while True:
            page = await self._request(client.list_tools(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if cursor is not None and cursor in cursors:
                raise InfrastructureError(f"its list of tools does not end: it sends the cursor {cursor[:40]!r} again")
            cursors.add(cursor)
            if len(tools) > _MOST_TOOLS:
                raise InfrastructureError(f"it lists more than {_MOST_TOOLS} tools")
            if cursor is None:
                return tools

    async def _request(self, question: Any) -> Any:
        if self.is_closed:
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
            cause = root_exception(error)
        finally:
            asking.cancel()
        ended = self.is_closed or (
            isinstance(cause, load_sdk().MCPError) and cause.code == load_sdk().types.CONNECTION_CLOSED
        )
        if http is not None and (http.lost or (ended and http.requests == sent)):
            await self.close()
            raise InfrastructureError(f"MCP: the session is lost: {http.lost or 'the server closed it'}")
        if isinstance(cause, load_sdk().MCPError):
            if cause.code == UNAVAILABLE:
                failure = f"MCP: {cause.message}"
                raise BackendError(
                    failure, blame=functools.partial(classify_failure, failure, self._answer_plainly), **cause.data
                ) from None
            raise ServerEndedError(f"MCP: {cause.message}") if ended else ToolError(cause.message)
        if isinstance(cause, OSError | RuntimeError | httpx2.HTTPError) or _of_streams(cause):
            raise ServerEndedError(f"MCP: {summarize_exception(cause)}")
        raise cause

    async def _answer_plainly(self) -> BoundedResponse:
        """Return status 200 if the server still lists its tools, for `classify_failure`.

        Raises:
            httpx2.RequestError: If the server does not.
        """
        try:
            client = await self._client
            async with asyncio.timeout(self._seconds):
                await client.session.list_tools()
        except Exception as error:
            raise httpx2.RequestError(summarize_exception(error)) from None
        return BoundedResponse(200, httpx2.Headers(), b"")


class Connections:
    """Connections of one event loop, by a key that identifies a server and its start options; see `get_connections`."""

    def __init__(self) -> None:
        self.reads_only: dict[str, bool] = {}
        """Whether all requested tools of a server declare that they only read, by key and tools.

        Set by the first listing.
        """
        self.started = 0
        """Number of connections made so far."""
        self.found_ready = 0
        """Number of per-episode connections that were prewarmed."""
        self.answered: set[str] = set()
        """Keys of servers that have listed their tools at least once."""
        self.failures: dict[str, list[str]] = {}
        """By key, the errors of attempts to start a process that has never responded."""
        self._had: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self._shared: dict[str, McpConnection] = {}
        self._ahead: dict[str, list[McpConnection]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._turn = asyncio.Semaphore(os.cpu_count() or 1)

    def get_lock(self, key: str) -> asyncio.Lock:
        """Return the lock of a key; the first episode that starts or lists a server holds it."""
        return self._locks.setdefault(key, asyncio.Lock())

    def get_shared(self, key: str, start: Start) -> McpConnection:
        """Return the shared connection of a key; start a new one if there is none or it is closed."""
        if key not in self._shared or self._shared[key].is_closed:
            self._shared[key] = self._start(start)
        return self._shared[key]

    def set_shared(self, key: str, connection: McpConnection) -> None:
        """Share an existing connection among all episodes from now on."""
        self._shared[key] = connection

    def take_own(self, key: str, start: Start) -> McpConnection:
        """Return a connection for one episode: a prewarmed one if available, otherwise a new one."""
        self._had[key] = self._had.get(key, 0) + 1
        self._open[key] = self._open.get(key, 0) + 1
        self._peak[key] = max(self._peak.get(key, 0), self._open[key])
        while self._ahead.get(key):
            ready = self._ahead[key].pop()
            if not ready.is_closed:
                self.found_ready += 1
                return ready
        return self._start(start)

    def release_own(self, key: str) -> None:
        """Record that an episode no longer uses its own connection."""
        self._open[key] -= 1

    def start_ahead(self, key: str, start: Start, most: int) -> None:
        """Start a server for the next episode, unless `most` servers are already waiting.

        Nothing is started until there were more episodes in total than at the same time.

        Args:
            key: Key of the server.
            start: Function that starts a connection.
            most: Maximum number of waiting servers.
        """
        if self._had.get(key, 0) <= self._peak.get(key, 0):
            return
        waiting = [one for one in self._ahead.get(key, ()) if not one.is_closed]
        self._ahead[key] = waiting if len(waiting) >= most else [self._start(start), *waiting]

    def _start(self, start: Start) -> McpConnection:
        self.started += 1
        return start(self._turn)


Start = Callable[[asyncio.Semaphore], McpConnection]
_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = weakref.WeakKeyDictionary()


def get_connections() -> Connections:
    """Return the MCP connections of the running event loop."""
    return _of_loops.setdefault(asyncio.get_running_loop(), Connections())


def is_read_only(tool: Any) -> bool:
    """Return whether a tool that an MCP server listed declares that it only reads."""
    return bool(tool.annotations is not None and tool.annotations.read_only_hint)


def _of_streams(error: BaseException) -> bool:
    return type(error).__module__.startswith("anyio")
