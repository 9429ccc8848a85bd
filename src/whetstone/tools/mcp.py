"""Any MCP server as tools, by the official SDK; and any tools as an MCP server.

Easy to get wrong: what an episode may share with another. A server that remembers anything is one episode's alone
(`mcp_connections.py`).
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
from whetstone.extras import release
from whetstone.tools.backend_failures import BackendError
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.mcp_connections import Connection, Connections, ServerEndedError, changes_nothing, connections
from whetstone.tools.mcp_sdk import sdk
from whetstone.tools.mcp_transports import HttpTransport, ProcessTransport
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.schema import Tool
from whetstone.tools.side_effects import CALLS_ALL, Effect, effect_of_hints
from whetstone.tools.toolset import Toolset
from whetstone.trajectory import Task

_MAX_ATTEMPTS = 2


class Mcp:
    """The tools of an MCP server.

    Args:
        command: What starts a server that speaks over its standard streams, as a list of words or as one would type it.
        url: Address of a server; SSE if its path ends with `/sse`, else streamable HTTP.
        environment: Of the command, beside a few usual ones.
        connection: `episode`: each episode has a server of its own, for those that remember; `shared`: all have the
            same, for those that do not; `auto`: shared where each of its tools declares that it only reads
            (`readOnlyHint`), else of its own.
        prewarm: Maximum number of idle servers, started while other episodes run; 0: none, and each
            episode waits for its own.
        include: Names of the tools to include; null: all.
        prefix: Put before the names of tools, where they would collide with others.
        timeout_seconds: How long starting and connecting may take, from when it is its turn: no more start at once
            than there are cores.

    Raises:
        RecipeError: Neither command nor address, or both, there is no such program, or the SDK is not installed.
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
            raise RecipeError("mcp: either a `command` or a `url`")
        sdk()
        command = shlex.split(command) if isinstance(command, str) else command
        if command is not None and not command:
            raise RecipeError("mcp: `command` is empty")
        if command and shutil.which(command[0], path=(environment or {}).get("PATH")) is None:
            raise RecipeError(f"mcp: there is no program {command[0]}")
        self.command, self.url, self.environment = command, url, environment or {}
        if prewarm < 0:
            raise RecipeError(f"mcp: `prewarm` is 0 or more, got {prewarm}")
        self.connection, self.prewarm, self.include, self.prefix = connection, prewarm, include, prefix
        self.timeout_seconds = timeout_seconds
        self._key = json.dumps([command and list(command), url, self.environment])
        self._asks = json.dumps([self._key, include and list(include)])
        self._connected: Connection | None = None
        self._own = False
        self._tools: list[Tool] = []
        self._reconnecting = asyncio.Lock()

    async def open(self, episode: Episode) -> None:
        """Connect, and ask which tools there are.

        Raises:
            InfrastructureError: The server does not answer.
            RecipeError: It has no tool of a name in `include`.
        """
        listed = await self._connect()
        missing = set(self.include or ()) - {tool.name for tool in listed}
        if missing:
            raise RecipeError(f"{self._named()} has no tool {', '.join(sorted(missing))}")
        self._tools = [self._tool(tool) for tool in self._wanted(listed)]

    async def _connect(self) -> list[Any]:
        """Return the server's tools over a new connection, or the shared one.

        Until the process of a server has answered once, one episode at a time starts it. If it fails to start twice
        before that, it is not started again.

        Raises:
            InfrastructureError: The server does not answer.
        """
        here = connections()
        if self.url is not None:
            return await self._choose_connection(here)
        async with here.learning(self._key):
            if self._key not in here.answered:
                return await self._try_to_start(here)
        return await self._choose_connection(here)

    async def _try_to_start(self, here: Connections) -> list[Any]:
        failures = here.failures.setdefault(self._key, [])
        if len(failures) >= _MAX_ATTEMPTS:
            raise InfrastructureError(f"{failures[-1]}; it was tried {_MAX_ATTEMPTS} times")
        try:
            return await self._choose_connection(here)
        except InfrastructureError as error:
            failures.append(str(error))
            raise

    async def _choose_connection(self, here: Connections) -> list[Any]:
        if self.connection != "auto":
            return await self._listed(here, own=self.connection == "episode")
        async with here.learning(self._asks):
            if self._asks not in here.reads_only:
                listed = await self._listed(here, own=True)
                assert self._connected is not None
                here.reads_only[self._asks] = all(map(changes_nothing, self._wanted(listed)))
                if here.reads_only[self._asks]:
                    here.share(self._key, self._connected)
                    here.left(self._key)
                    self._own = False
                return listed
        return await self._listed(here, own=not here.reads_only[self._asks])

    async def _listed(self, here: Connections, *, own: bool) -> list[Any]:
        get = here.own if own else here.shared
        self._connected, self._own = get(self._key, self._start), own
        try:
            listed = await self._connected.listed()
        except (BackendError, InfrastructureError, ToolError) as error:
            kind = ServerEndedError if isinstance(error, ServerEndedError) else InfrastructureError
            raise kind(f"{self._named()}: {error}") from None
        here.answered.add(self._key)
        here.failures.pop(self._key, None)
        return listed

    async def close(self) -> None:
        """Hang up, where the connection is the episode's own, and start one for the next."""
        connected, self._connected, self._tools = self._connected, None, []
        if connected is not None and self._own:
            await connected.end()
            connections().left(self._key)
            if self.prewarm and self.command is not None and self._key in connections().answered:
                connections().start_ahead(self._key, self._start, self.prewarm)

    def _start(self, turn: asyncio.Semaphore) -> Connection:
        return Connection(self._server(), turn=turn, seconds=self.timeout_seconds)

    def _wanted(self, listed: Sequence[Any]) -> list[Any]:
        return [tool for tool in listed if self.include is None or tool.name in self.include]

    def tools(self) -> list[Tool]:
        """Those of the server; none before it is asked."""
        return self._tools

    def _server(self) -> Any:
        if self.url is not None:
            return HttpTransport(self.url)
        assert self.command is not None
        # the standard error of the first attempt is shown, that of the second is part of the error
        return ProcessTransport(self.command, self.environment, is_quiet=bool(connections().failures.get(self._key)))

    def _named(self) -> str:
        typed = " ".join(shlex.join(self.command or ()).split())
        return f"the MCP server {self.url or (typed if len(typed) <= 200 else f'{typed[:199]}…')}"

    async def _ask(self, name: str, arguments: dict[str, Any]) -> Result:
        """Return the server's answer to a call; connect again if the server ended in the middle of the call.

        Raises:
            ServerEndedError: It did, and answers again.
            InfrastructureError: It does not answer.
        """
        connected = self._connected
        assert connected is not None
        try:
            return as_result(await connected.called(name, arguments))
        except ServerEndedError as error:
            async with self._reconnecting:
                if self._connected is connected:
                    await connected.end()
                    if self._own:
                        connections().left(self._key)
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
                raise InfrastructureError(f"{self._named()} was called before its episode began")
            if self._connected.over and not self._own:  # another episode found that the session is lost
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


def as_result(answer: Any) -> Result:
    """An MCP result as content: text and images as they are, what is neither as a word of what it is."""
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


def server_of(tools: Sequence[Any], *, name: str = "whetstone") -> tuple[Any, Toolset]:
    """An MCP server with these tools, and the toolset behind it, which is to be opened before and closed after.

    Args:
        tools: As of a `Toolset`.
    """
    types = sdk().types
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

    async def called(_: Any, asked: Any) -> Any:
        answer = await toolset.call(ToolCall(asked.name, json.dumps(asked.arguments or {})))
        failed = answer.record.outcome not in ("ok", "stopped")
        return types.CallToolResult(content=[_part(part) for part in answer.content], is_error=failed)

    server = sdk().Server(name, version=release(), on_list_tools=listed, on_call_tool=called)
    return server, toolset


async def serve(tools: Sequence[Any]) -> None:
    """Be an MCP server over standard input and output until the other side hangs up."""
    server, toolset = server_of(tools)
    await toolset.open(Task("mcp", ""), seed=0)
    try:
        async with sdk().stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await toolset.close()


def _part(part: Text | Image) -> Any:
    if isinstance(part, Text):
        return _text_part(part.text)
    kind, _, data = part.url.removeprefix("data:").partition(";base64,")
    return sdk().types.ImageContent(type="image", data=data, mime_type=kind)


def _text_part(text: str) -> Any:
    return sdk().types.TextContent(type="text", text=text)
