"""Text that formats use for tools and tool results if the template of a model does not render them."""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat.formats.json_call import schemas
from whetstone.chat.message import Message, ToolSpec, user


def told(tools: Sequence[ToolSpec], example: str) -> str:
    """Describe the tools as JSON schemas, one per line, and how a call is written; empty without tools."""
    if not tools:
        return ""
    return (
        "# Tools\n\nYou may call functions to help with the task. Their signatures, as JSON:\n"
        f"{schemas(tools)}\n\nA call is written:\n{example}"
    )


def results_of(messages: Sequence[Message]) -> list[Message]:
    """Write tool results between tags; neighboring ones are in one user message."""
    shown: list[Message] = []
    previous = None
    for message in messages:
        wrapped = f"<tool_response>\n{message.text}\n</tool_response>"
        if message.role != "tool":
            shown.append(message)
        elif previous == "tool":
            shown[-1] = user(f"{shown[-1].text}\n{wrapped}")
        else:
            shown.append(user(wrapped))
        previous = message.role
    return shown
