"""Any MCP server as tools, by the official SDK; and any tools as an MCP server.

Easy to get wrong: the SDK's connection belongs to the task that opened it. So each lives in a task of its own, and
episodes, whose tasks come and go, only send to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, TextIO

import httpx2

from whetstone.chat.message import Image, Text, ToolCall, ToolSpec
from whetstone.errors import InfrastructureError, RecipeError, ToolError, explained
from whetstone.extras import install_command, release
from whetstone.network import MOST_BYTES, no_more_than, trusted
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.schema import Tool
from whetstone.tools.toolset import Toolset
from whetstone.trajectory import Task

_MOST_TOOLS = 2000
"""Of a server; one that lists more pages than that does not end."""
_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Connection]] = weakref.WeakKeyDictionary()


class Mcp:
    """The tools of an MCP server.

    Args:
        command: What starts a server that speaks over its standard streams, as a list of words or as one would type it.
        url: Where a server listens that speaks streamable HTTP.
        environment: Of the command, beside a few usual ones.
        connection: `episode`: each episode has one of its own, for servers that remember; `shared`: all have the same.
        only: Names of the tools wanted; null: all.
        prefix: Put before the names of tools, where they would collide with others.
        timeout_seconds: How long connecting may take.

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
        connection: Literal["episode", "shared"] = "episode",
        only: Sequence[str] | None = None,
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
        self.connection, self.only, self.prefix = connection, only, prefix
        self.timeout_seconds = timeout_seconds
        self._connected: _Connection | None = None
        self._tools: list[Tool] = []

    async def open(self, episode: Episode) -> None:
        """Connect, and ask which tools there are.

        Raises:
            InfrastructureError: The server does not answer.
            RecipeError: It has no tool of a name in `only`.
        """
        listed = await self._connect()
        missing = set(self.only or ()) - {tool.name for tool in listed}
        if missing:
            raise RecipeError(f"{self._named()} has no tool {', '.join(sorted(missing))}")
        self._tools = [self._tool(tool) for tool in listed if self.only is None or tool.name in self.only]

    async def _connect(self) -> list[Any]:
        """Its tools, over a connection that is there.

        Raises:
            InfrastructureError: The server does not answer.
        """
        if self.connection == "shared":
            known = _shared.setdefault(asyncio.get_running_loop(), {})
            key = json.dumps([self.command and list(self.command), self.url, self.environment])
            if key not in known or known[key].over:
                known[key] = _Connection(self._server())
            self._connected = known[key]
        else:
            self._connected = _Connection(self._server())
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self._connected.listed()
        except (InfrastructureError, ToolError) as error:
            raise InfrastructureError(f"{self._named()}: {error}") from None
        except TimeoutError:
            raise InfrastructureError(f"{self._named()} did not answer within {self.timeout_seconds:g} s") from None

    async def close(self) -> None:
        """Hang up, where the connection is the episode's own."""
        if self._connected is not None and self.connection == "episode":
            await self._connected.end()
        self._connected, self._tools = None, []

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
        return f"the MCP server {self.url or ' '.join(self.command or ())}"

    def _tool(self, listed: Any) -> Tool:
        spec = ToolSpec(f"{self.prefix}{listed.name}", listed.description or "", listed.input_schema)

        async def answer(arguments: dict[str, Any]) -> Result:
            if self._connected is None:
                raise InfrastructureError(f"{self._named()} was called before its episode began")
            try:
                return as_result(await self._connected.called(listed.name, arguments))
            except InfrastructureError:
                await self._connected.end()
                await self._connect()  # one that comes up again has ended by what it was asked
            raise ToolError(
                "the server ended in the middle of the call; it was started again, and what it knew is gone"
            )

        return tool_from_schema(spec, answer)


class _Connection:
    """A client in a task of its own."""

    def __init__(self, server: Any) -> None:
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._life = asyncio.create_task(self._lived(server))

    @property
    def over(self) -> bool:
        return self._life.done()

    async def _lived(self, server: Any) -> None:
        try:
            async with sdk().Client(server) as client:
                self._client.set_result(client)
                await self._over.wait()
        except Exception as error:
            if not self._client.done():
                self._client.set_exception(InfrastructureError(f"no connection: {explained(error)}"))
                self._client.exception()  # whoever waits is told; where nobody does, it is no news

    async def listed(self) -> list[Any]:
        """Every tool, page by page."""
        client = await asyncio.shield(self._client)
        found, cursor = [], None
        while True:
            page = await self._asked(client.list_tools(cursor=cursor))
            found += page.tools
            cursor = page.next_cursor
            if len(found) > _MOST_TOOLS:
                raise InfrastructureError(f"it lists more than {_MOST_TOOLS} tools")
            if cursor is None:
                return found

    async def called(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What the server says to a call."""
        client = await asyncio.shield(self._client)
        return await self._asked(client.call_tool(name, dict(arguments)))

    async def _asked(self, question: Any) -> Any:
        if self.over:
            question.close()
            raise InfrastructureError("MCP: the server is gone")
        asking = asyncio.ensure_future(question)
        try:
            done, _ = await asyncio.wait({asking, self._life}, return_when=asyncio.FIRST_COMPLETED)
            if asking not in done:
                raise InfrastructureError("MCP: the server ended in the middle of a call")
            return asking.result()
        except sdk().MCPError as error:
            if self.over or error.code == sdk().types.CONNECTION_CLOSED:
                raise InfrastructureError(f"MCP: {error.message}") from None
            raise ToolError(error.message) from None  # it is there, and says why it would not
        except (OSError, RuntimeError) as error:
            raise InfrastructureError(f"MCP: {type(error).__name__}: {error}") from None
        except Exception as error:
            if type(error).__module__.startswith("anyio"):
                raise InfrastructureError(f"MCP: the server is gone: {type(error).__name__}") from None
            raise
        finally:
            asking.cancel()

    async def end(self) -> None:
        """Hang up and wait until that is done."""
        self._over.set()
        if not self._client.done():
            self._life.cancel()
        await asyncio.wait({self._life})


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
        declared = [
            types.Tool(name=spec.name, description=spec.description, inputSchema=dict(spec.parameters))
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


class _Sdk:
    def __init__(self) -> None:
        try:
            import mcp
            import mcp.client.stdio
            import mcp.client.streamable_http
            import mcp.server.stdio
            import mcp.shared.exceptions
            import mcp_types
        except ImportError:
            raise RecipeError(f"mcp: the SDK is not installed: {install_command('mcp')}") from None
        self.types, self.Client, self.Server = mcp_types, mcp.Client, mcp.server.Server
        self.StdioServerParameters, self.stdio_server = mcp.StdioServerParameters, mcp.server.stdio.stdio_server
        self.stdio_client = mcp.client.stdio.stdio_client
        self.streamable_http_client = mcp.client.streamable_http.streamable_http_client
        self.MCPError = mcp.shared.exceptions.MCPError


_loaded: list[_Sdk] = []


def sdk() -> _Sdk:
    """What is used of the SDK, imported once and only where it is used.

    Raises:
        RecipeError: It is not installed.
    """
    if not _loaded:
        _loaded.append(_Sdk())
    return _loaded[0]
