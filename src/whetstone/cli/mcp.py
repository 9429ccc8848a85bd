"""`whetstone mcp`: tools of ours as an MCP server, for agents that are not."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from typing import Any

import click

from whetstone.errors import RecipeError
from whetstone.parts import OptionError, checked_options, find_part
from whetstone.tools import TOOLS
from whetstone.tools.mcp import serve


@click.command()
@click.argument("tools", nargs=-1, required=True)
def mcp(tools: tuple[str, ...]) -> None:
    """Serve TOOLS over standard input and output, by the Model Context Protocol.

    Each is a name (`python`, `package.module:function`) or JSON with a name and options:
    '{"name": "sql", "url": "shop.sqlite"}'.
    """
    asyncio.run(serve([_tool(text) for text in tools]))


def _tool(text: str) -> Any:
    options: dict[str, Any] = {"name": text}
    if text.startswith("{"):
        try:
            options = json.loads(text)
        except ValueError as error:
            raise RecipeError(f"{text}: {error}") from None
    name = options.pop("name", "")
    part = find_part("tool", name, TOOLS)
    if not inspect.isclass(part):
        if options:
            raise RecipeError(f"{name} is a function and has no options: {', '.join(options)}")
        return part
    try:
        return functools.partial(part, **checked_options(part, options))
    except OptionError as error:
        raise RecipeError(f"{name}: {error}") from None
