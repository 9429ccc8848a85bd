"""Tool calls of Mistral models: a list of JSON objects after `[TOOL_CALLS]`.

Note:
    Newer models write `[TOOL_CALLS]name[ARGS]{…}` once per call, with or without an id between name and arguments. All
    variants are parsed; the list is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import decode_calls, decode_json, skip_space, write_call
from whetstone.chat.formats.scanning import Found, scan_turn, skip_block
from whetstone.chat.message import Message, ToolCall, ToolSpec, user

_SIGN = "[TOOL_CALLS]"
_OPENING = re.compile(re.escape(_SIGN))
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\]\s*|(?=\{))")
_READ_MARKERS = (_SIGN, "[ARGS]", "[CALL_ID]")


class Mistral:
    """Tool-call format of Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`.

    Consecutive results are written into one user message, each as `[TOOL_RESULTS] {"content": …}[/TOOL_RESULTS]`.
    """

    markers = (
        _SIGN,
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[ARGS]",
        "[CALL_ID]",
    )
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as one JSON list between `[AVAILABLE_TOOLS]` markers.

        The result is empty without tools.
        """
        if not tools:
            return ""
        listed = json.dumps([tool.to_openai() for tool in tools], ensure_ascii=False)
        return f"[AVAILABLE_TOOLS] {listed}[/AVAILABLE_TOOLS]"

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls as one list.

        Raises:
            ValueError: If the arguments of a call are not a JSON object.
        """
        if not message.tool_calls:
            return message.text
        calls = ", ".join(write_call(call, arguments="arguments", signs=_READ_MARKERS) for call in message.tool_calls)
        return f"{message.text}{_SIGN} [{calls}]"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the calls after each `[TOOL_CALLS]`, and the text around them."""
        return scan_turn(text, _OPENING, _read_block, _READ_MARKERS)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages; consecutive results share one message."""
        written_messages: list[Message] = []
        previous = None
        for message in messages:
            body = json.dumps({"content": message.text}, ensure_ascii=False)
            wrapped = f"[TOOL_RESULTS] {body}[/TOOL_RESULTS]"
            if message.role != "tool":
                written_messages.append(message)
            elif previous == "tool":
                written_messages[-1] = user(written_messages[-1].text + wrapped)
            else:
                written_messages.append(user(wrapped))
            previous = message.role
        return written_messages


def _read_block(match: re.Match[str]) -> tuple[list[Found], int]:
    text, position = match.string, match.end()
    start = skip_space(text, position)
    try:
        if text[start : start + 1] in ("[", "{"):
            calls, end = decode_calls(text, start)
            return (calls or [f"{_SIGN} is followed by an empty list"]), end
        blocks: list[Found] = []
        while (named := _NAMED.match(text, position)) is not None:
            value, end = decode_json(text, named.end())
            if not isinstance(value, dict):
                raise ValueError(f"the arguments of {named[1]} must be a JSON object")
            blocks.append(ToolCall(named[1], text[skip_space(text, named.end()) : end], named[2] or ""))
            position = end
        if blocks:
            return blocks, position
        raise ValueError(f"got {text[start : start + 40]!r}")
    except ValueError as error:
        reason = f"{_SIGN} must be followed by a list of calls or by name[ARGS]{{arguments}}: {error}"
        return [reason], skip_block(text, match.end(), (), _OPENING)
