"""How does a message look in a terminal? What it says, what it calls, what could not be read; no escape in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whetstone.tools.plain_text import plain

if TYPE_CHECKING:
    from whetstone.chat import Message


def shown(message: Message) -> str:
    """One message, with its role before it."""
    calls = "".join(f"  → {call.name}({call.arguments})" for call in message.tool_calls)
    unread = "".join(f"  ✗ {what}" for what in message.malformed)
    return plain(f"  {message.role:<10} {message.text}{calls}{unread}")
