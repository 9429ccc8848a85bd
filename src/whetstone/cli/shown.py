"""How does a message look in a terminal? What it says, what it calls, what could not be read; no escape in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from whetstone.tools.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whetstone.chat import Message
    from whetstone.tool_calls import ToolStatistics

_MAX_TOOLS = 8


def shown(message: Message) -> str:
    """One message, with its role before it."""
    calls = "".join(f"  → {call.name}({call.arguments})" for call in message.tool_calls)
    unread = "".join(f"  ✗ {what}" for what in message.malformed)
    return plain(f"  {message.role:<10} {message.text}{calls}{unread}")


def show_tools(tools: Mapping[str, ToolStatistics]) -> None:
    """Print a line for each of the most frequently called tools: calls, errors, cut results, seconds."""
    for name, tool in list(tools.items())[:_MAX_TOOLS]:
        errors = f"  errors {tool.error_fraction:.0%}" if tool.error_fraction else ""
        errors += f" ({tool.failed / tool.calls:.0%} of the tool)" if tool.failed else ""
        cut = f"  cut {tool.truncated / tool.calls:.0%}" if tool.truncated else ""
        most = f"  most often: {tool.error}" if tool.error else ""
        seconds = f"  {tool.seconds_mean:.2g} s on average, {tool.seconds_max:.2g} s at most"
        click.echo(plain(f"tool    {name}  calls {tool.calls}{errors}{cut}{seconds}{most}"))
