"""MCP servers as tools, and tools as an MCP server, with the official SDK.

Note:
    Episodes must not share a server that keeps state (see `mcp_connections.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from whetstone.chat.message import Image, Text, ToolCall, ToolSpec
from whetstone.errors import InfrastructureError, RecipeError, ToolError
from whetstone.optional_dependencies import get_package_version
from whetstone.tools.backend_failures import BackendError
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.mcp_connections import Connections, McpConnection, ServerEndedError, get_connections, is_read_only
from whetstone.tools.mcp_sdk import load_sdk
from whetstone.tools.mcp_transports import HttpTransport, ProcessTransport
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.schema import Tool
from whetstone.tools.side_effects import CALLS_ALL, Effect, effect_of_hints
from whetstone.tools.toolset import Toolset
from whetstone.trajectory import Task

_MAX_ATTEMPTS = 2
_reported: set[str] = set()
"""Keys of servers of which an attempt to start failed in this process; its standard error was shown."""


class Mcp:
    """Tools of an MCP server.

    Args:
        command: Command that starts a server on its standard streams, as a list of words or as a shell command line.
        url: Address of a server; SSE if its path ends with `/sse`, otherwise streamable HTTP.
        environment: Environment variables of the command, in addition to a few standard ones.
        connection: `episode`: each episode has its own server, for servers with state; `shared`: all episodes use the
            same one, for servers without state; `auto`: shared if each of its tools declares that it only reads
            (`readOnlyHint`), otherwise one per episode.
        prewarm: Maximum number of idle servers, started while other episodes run; 0: none, and each episode waits for
            its own server.
        include: Names of the tools to include; null: all.
        prefix: Prefix of the tool names, to avoid collisions with other tools.
        timeout_seconds: Time limit for start and connection, in seconds. It does not include the wait for a free core:
            at most one server per core starts at a time.

    Raises:
        RecipeError: If not exactly one of `command` and `url` is set, or the program or the SDK is not installed.
    """

    changing = True
    replayable = True

    def __init__(
        self,
        *,
        command: Sequence[str] | str | None = None,
        url: str | None = None,
        environment: dict[str, str] | None = None,
        connection: Literal["auto", "episode", "shared"] = "auto",
        prewarm: int = 4,
        include: Sequence[str] | None = None,
        prefix: str = "",
        timeout_seconds: float = 30.0,
    ) -> None:
        if (command is None) == (url is None):
            raise RecipeError("mcp: set exactly one of `command` and `url`")
        load_sdk()
        command = shlex.split(command) if isinstance(command, str) else command
        if command is not None and not command:
            raise RecipeError("mcp: `command` is empty")
        if command and shutil.which(command[0], path=(environment or {}).get("PATH")) is None:
            raise RecipeError(f"mcp: no program {command[0]}; install it or correct `command`")
        self.command, self.url, self.environment = command, url, environment or {}
        if prewarm < 0:
            raise RecipeError(f"mcp: `prewarm` must be 0 or more, got {prewarm}")
        self.connection, self.prewarm, self.include, self.prefix = connection, prewarm, include, prefix
        self.timeout_seconds = timeout_seconds
        self._key = json.dumps([command and list(command), url, self.environment])
        self._asks = json.dumps([self._key, include and list(include)])
        self._connected: McpConnection | None = None
        self._own = False
        self._tools: list[Tool] = []
        self._reconnecting = asyncio.Lock()

    async def open(self, episode: Episode) -> None:
        """Connect to the server and list its tools.

        Raises:
            InfrastructureError: If the server does not respond.
            RecipeError: If the server has no tool of a name in `include`.
        """
        listed = await self._connect()
        missing = set(self.include or ()) - {tool.name for tool in listed}
        if missing:
            raise RecipeError(f"{self._label()} has no tool {', '.join(sorted(missing))}")
        self._tools = [self._tool(tool) for tool in self._select(listed)]

    async def _connect(self) -> list[Any]:
        """Connect, or use the shared connection, and return the server's tools.

        Until the process of a server has responded once, one episode at a time starts it. If it fails to start twice
        before that, it is not started again.

        Raises:
            InfrastructureError: If the server does not respond.
        """
        pool = get_connections()
        if self.url is not None:
            return await self._choose_connection(pool)
        async with pool.get_lock(self._key):
            if self._key not in pool.answered:
                return await self._try_to_start(pool)
        return await self._choose_connection(pool)

    async def _try_to_start(self, pool: Connections) -> list[Any]:
        failures = pool.failures.setdefault(self._key, [])
        if len(failures) >= _MAX_ATTEMPTS:
            raise InfrastructureError(f"{failures[-1]}; it was tried {_MAX_ATTEMPTS} times")
        try:
            return await self._choose_connection(pool)
        except InfrastructureError as error:
            failures.append(str(error))
            _reported.add(self._key)
            raise

    async def _choose_connection(self, pool: Connections) -> list[Any]:
        if self.connection != "auto":
            return await self._list_own(pool, own=self.connection == "episode")
        async with pool.get_lock(self._asks):
            if self._asks not in pool.reads_only:
                listed = await self._list_own(pool, own=True)
                assert self._connected is not None
                pool.reads_only[self._asks] = all(map(is_read_only, self._select(listed)))
                if pool.reads_only[self._asks]:
                    pool.set_shared(self._key, self._connected)
                    pool.release_own(self._key)
                    self._own = False
                return listed
        return await self._list_own(pool, own=not pool.reads_only[self._asks])

    async def _list_own(self, pool: Connections, *, own: bool) -> list[Any]:
        get = pool.take_own if own else pool.get_shared
        self._connected, self._own = get(self._key, self._start), own
        try:
            listed = await self._connected.list_tools()
        except (BackendError, InfrastructureError, ToolError) as error:
            kind = ServerEndedError if isinstance(error, ServerEndedError) else InfrastructureError
            raise kind(f"{self._label()}: {error}") from None
        pool.answered.add(self._key)
        pool.failures.pop(self._key, None)
        _reported.discard(self._key)
        return listed

    async def close(self) -> None:
        """Close the connection if it belongs to the episode, and start a server for the next episode in advance."""
        connected, self._connected, self._tools = self._connected, None, []
        if connected is not None and self._own:
            await connected.close()
            get_connections().release_own(self._key)
            if self.prewarm and self.command is not None and self._key in get_connections().answered:
                get_connections().start_ahead(self._key, self._start, self.prewarm)

    def _start(self, turn: asyncio.Semaphore) -> McpConnection:
        return McpConnection(self._server(), turn=turn, seconds=self.timeout_seconds)

    def _select(self, listed: Sequence[Any]) -> list[Any]:
        return [tool for tool in listed if self.include is None or tool.name in self.include]

    def tools(self) -> list[Tool]:
        """Return the tools of the server; empty before `open`."""
        return self._tools

    def _server(self) -> Any:
        if self.url is not None:
            return HttpTransport(self.url)
        assert self.command is not None
        # the standard error of the first failed attempt is shown, that of later ones is part of the error
        return ProcessTransport(self.command, self.environment, is_quiet=self._key in _reported)

    def _label(self) -> str:
        typed = " ".join(shlex.join(self.command or ()).split())
        return f"the MCP server {self.url or (typed if len(typed) <= 200 else f'{typed[:199]}…')}"

    async def _ask(self, name: str, arguments: dict[str, Any]) -> Result:
        """Call a tool of the server.

        If the server ends during the call, connect again before raising.

        Raises:
            ServerEndedError: If the server ended during the call and is connected again.
            InfrastructureError: If the server does not respond.
        """
        connected = self._connected
        assert connected is not None
        try:
            return convert_mcp_result(await connected.call_tool(name, arguments))
        except ServerEndedError as error:
            async with self._reconnecting:
                if self._connected is connected:
                    await connected.close()
                    if self._own:
                        get_connections().release_own(self._key)
                    await self._reconnect()
            raise error from None

    async def _reconnect(self) -> None:
        try:
            await self._connect()
        except ServerEndedError as error:  # of the start, not of a call
            raise InfrastructureError(str(error)) from None

    def _tool(self, listed: Any) -> Tool:
        spec = ToolSpec(f"{self.prefix}{listed.name}", listed.description or "", listed.input_schema)

        async def answer(arguments: dict[str, Any]) -> Result:
            if self._connected is None:
                raise InfrastructureError(f"{self._label()} was called before `open`")
            if self._connected.is_closed and not self._own:  # another episode found that the session is lost
                await self._reconnect()
            try:
                return await self._ask(listed.name, arguments)
            except ServerEndedError:
                is_shared = not self._own  # the call of another episode may have ended it
            if is_shared:
                with contextlib.suppress(ServerEndedError):
                    return await self._ask(listed.name, arguments)
            raise ToolError(
                "the server ended in the middle of the call; it was started again, and what it knew is gone"
            )

        return replace(tool_from_schema(spec, answer), effects=effect_of_hints(listed.annotations))


def convert_mcp_result(answer: Any) -> Result:
    """Convert the result of an MCP call: text and images unchanged, other parts as a short description."""
    content: list[Text | Image] = []
    for part in answer.content:
        if part.type == "text":
            content.append(Text(part.text))
        elif part.type == "image":
            content.append(Image(f"data:{part.mime_type};base64,{part.data}"))
        elif part.type == "resource" and hasattr(part.resource, "text"):
            content.append(Text(part.resource.text))
        elif part.type == "resource":
            content.append(Text(f"[{part.resource.uri}: {len(part.resource.blob) * 3 // 4} bytes]"))
        elif part.type == "resource_link":
            content.append(Text(f"[{part.name}: {part.uri}]"))
        else:
            content.append(Text(f"[{part.type}]"))
    if not content and answer.structured_content is not None:
        content.append(Text(json.dumps(answer.structured_content, ensure_ascii=False)))
    return Result(tuple(content), "tool_error" if answer.is_error else "ok")


def create_mcp_server(tools: Sequence[Any], *, name: str = "whetstone") -> tuple[Any, Toolset]:
    """Create an MCP server that offers tools.

    The caller must open the toolset before the server runs, and close it afterwards.

    Args:
        tools: Tools, as for `Toolset`.
        name: Name of the server.

    Returns:
        (server of the SDK, toolset that executes the calls).
    """
    types = load_sdk().types
    toolset = Toolset(tools, max_result_characters=100_000, calls=CALLS_ALL)  # permission is the client's affair

    def hints(effect: Effect | None) -> Any:
        if effect == "read":  # a client shares a server whose tools only read, which requires tools without state
            return types.ToolAnnotations(read_only_hint=True) if toolset.stateless else None
        if effect is None:
            return None
        return types.ToolAnnotations(read_only_hint=False, destructive_hint=effect == "destructive")

    async def listed(_: Any, __: Any) -> Any:
        effects = toolset.effects
        declared = [
            types.Tool(
                name=spec.name,
                description=spec.description,
                inputSchema=dict(spec.parameters),
                annotations=hints(effects[spec.name]),
            )
            for spec in toolset.specs
        ]
        return types.ListToolsResult(tools=declared)

    async def called(_: Any, request: Any) -> Any:
        answer = await toolset.call(ToolCall(request.name, json.dumps(request.arguments or {})))
        failed = answer.record.outcome not in ("ok", "stopped")
        return types.CallToolResult(content=[_part(part) for part in answer.content], is_error=failed)

    server = load_sdk().Server(name, version=get_package_version(), on_list_tools=listed, on_call_tool=called)
    return server, toolset


async def serve_tools(tools: Sequence[Any]) -> None:
    """Run an MCP server with these tools over standard input and output until the client disconnects."""
    server, toolset = create_mcp_server(tools)
    await toolset.open(Task("mcp", ""), seed=0)
    try:
        async with load_sdk().stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await toolset.close()


def _part(part: Text | Image) -> Any:
    if isinstance(part, Text):
        return _text_part(part.text)
    kind, _, data = part.url.removeprefix("data:").partition(";base64,")
    return load_sdk().types.ImageContent(type="image", data=data, mime_type=kind)


def _text_part(text: str) -> Any:
    return load_sdk().types.TextContent(type="text", text=text)
