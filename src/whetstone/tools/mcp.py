"""Any MCP server as tools, by the official SDK; and any tools as an MCP server.

Easy to get wrong: what an episode may share with another. A server that remembers anything is one episode's alone
(`mcp_connections.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, TextIO

import httpx2

from whetstone.chat.message import Image, Text, ToolCall, ToolSpec
from whetstone.errors import InfrastructureError, RecipeError, ToolError
from whetstone.extras import release
from whetstone.network import MOST_BYTES, no_more_than, trusted
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.mcp_connections import Connection, Connections, changes_nothing, connections
from whetstone.tools.mcp_sdk import sdk
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.schema import Tool
from whetstone.tools.toolset import Toolset
from whetstone.trajectory import Task


class Mcp:
    """The tools of an MCP server.

    Args:
        command: What starts a server that speaks over its standard streams, as a list of words or as one would type it.
        url: Where a server listens that speaks streamable HTTP.
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
        """Its tools, over a connection that is there.

        Raises:
            InfrastructureError: The server does not answer.
        """
        here = connections()
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
            return await self._connected.listed()
        except (InfrastructureError, ToolError) as error:
            raise InfrastructureError(f"{self._named()}: {error}") from None

    async def close(self) -> None:
        """Hang up, where the connection is the episode's own, and start one for the next."""
        connected, self._connected, self._tools = self._connected, None, []
        if connected is not None and self._own:
            await connected.end()
            connections().left(self._key)
            if self.prewarm and self.command is not None:
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
            return _over_http(self.url)
        assert self.command is not None
        first, *rest = self.command
        server = sdk().StdioServerParameters(command=first, args=rest, env=self.environment)
        return sdk().stdio_client(server, errlog=_what_it_complains())

    def _named(self) -> str:
        typed = " ".join(shlex.join(self.command or ()).split())
        return f"the MCP server {self.url or (typed if len(typed) <= 200 else f'{typed[:199]}…')}"

    def _tool(self, listed: Any) -> Tool:
        spec = ToolSpec(f"{self.prefix}{listed.name}", listed.description or "", listed.input_schema)

        async def answer(arguments: dict[str, Any]) -> Result:
            if self._connected is None:
                raise InfrastructureError(f"{self._named()} was called before its episode began")
            try:
                return as_result(await self._connected.called(listed.name, arguments))
            except InfrastructureError:
                await self._connected.end()
                if self._own:
                    connections().left(self._key)
                await self._connect()  # one that comes up again has ended by what it was asked
            raise ToolError(
                "the server ended in the middle of the call; it was started again, and what it knew is gone"
            )

        return tool_from_schema(spec, answer)


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
    toolset = Toolset(tools, max_result_characters=100_000)

    async def listed(_: Any, __: Any) -> Any:
        # with tools that remember nothing, a server may be shared; who asks is told so
        hints = types.ToolAnnotations(read_only_hint=True) if toolset.stateless else None
        declared = [
            types.Tool(
                name=spec.name, description=spec.description, inputSchema=dict(spec.parameters), annotations=hints
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


@contextlib.asynccontextmanager
async def _over_http(url: str) -> AsyncIterator[Any]:
    """The SDK's way to a server, on which no answer is longer than it may be."""
    async with (
        httpx2.AsyncClient(
            timeout=httpx2.Timeout(30.0, read=300.0),
            headers={"Accept-Encoding": "identity"},
            verify=trusted(),
            event_hooks={"response": [no_more_than(MOST_BYTES)]},
        ) as client,
        sdk().streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def _what_it_complains() -> TextIO:
    """Where a server's own complaints go: to ours, where that is a stream a process can write to."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # a notebook's
        return open(os.devnull, "w")
    return sys.stderr


def _text_part(text: str) -> Any:
    return sdk().types.TextContent(type="text", text=text)
