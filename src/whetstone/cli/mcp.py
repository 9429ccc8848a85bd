"""`whetstone mcp`: tools as an MCP server, for other agents."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

import whetstone.tools
from whetstone.errors import RecipeError
from whetstone.plugins import bind_component
from whetstone.tools.mcp_tools import serve_tools
from whetstone.tools.protocol import OPTIONAL


@click.command("mcp")
@click.argument("tools", nargs=-1, required=True)
def mcp_command(tools: tuple[str, ...]) -> None:
    """Serve TOOLS over standard input and output, by the Model Context Protocol.

    Each is a name (`python`, `package.module:function`) or JSON with a name and options:
    '{"name": "sql", "url": "shop.sqlite"}'.
    """
    asyncio.run(serve_tools([_tool(text) for text in tools]))


def _tool(text: str) -> Any:
    if not text.startswith("{"):
        return bind_component("tool", text, whetstone.tools.TOOLS, optional=OPTIONAL)
    try:
        return bind_component("tool", json.loads(text), whetstone.tools.TOOLS, optional=OPTIONAL)
    except ValueError as error:
        raise RecipeError(f"{text}: {error}") from None
