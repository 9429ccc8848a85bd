"""Texts of tool descriptions and tool results for formats whose models' templates render neither."""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat.formats.json_call import write_schemas
from whetstone.chat.message import Message, ToolSpec, user


def render_tool_prompt(tools: Sequence[ToolSpec], example: str) -> str:
    """Return the tools as JSON declarations, one per line, with an example of a call.

    The result is empty without tools.
    """
    if not tools:
        return ""
    return (
        "# Tools\n\nYou may call functions to help with the task. Their signatures, as JSON:\n"
        f"{write_schemas(tools)}\n\nA call is written:\n{example}"
    )


def render_results(messages: Sequence[Message]) -> list[Message]:
    """Return tool results as user messages between `<tool_response>` tags.

    Consecutive results share one message.
    """
    written: list[Message] = []
    previous = None
    for message in messages:
        wrapped = f"<tool_response>\n{message.text}\n</tool_response>"
        if message.role != "tool":
            written.append(message)
        elif previous == "tool":
            written[-1] = user(f"{written[-1].text}\n{wrapped}")
        else:
            written.append(user(wrapped))
        previous = message.role
    return written
