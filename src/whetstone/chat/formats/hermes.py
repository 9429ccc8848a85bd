"""Tool calls of Hermes and Qwen models: one JSON object per pair of `<tool_call>` tags.

Note:
    Tool results are written into a user message, consecutive ones into the same, as the models' own templates do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whetstone.chat.formats.json_block import JsonBlock
from whetstone.chat.formats.json_call import write_call, write_schemas
from whetstone.chat.formats.scanning import scan_turn
from whetstone.chat.message import Message, ToolSpec, with_text
from whetstone.chat.thoughts import read_after_thought

_BEGIN, _END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Hermes(JsonBlock):
    """Tool-call format of Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    begin: str = _BEGIN
    end: str = _END
    markers = (_BEGIN, _END, "<tool_response>", "</tool_response>")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, one per line, with instructions for calls.

        The result is empty without tools.
        """
        if not tools:
            return ""
        return (
            "# Tools\n\nYou may call functions to help with the task. Their signatures, as JSON:\n"
            f"<tools>\n{write_schemas(tools)}\n</tools>\n\n"
            "For each call, answer with a JSON object inside tags:\n"
            '<tool_call>\n{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
        )

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by each call between tags.

        Raises:
            ValueError: If the arguments of a call are not a JSON object.
        """
        pieces = [message.text] if message.text else []
        for call in message.tool_calls:
            body = write_call(call, arguments="arguments", signs=(_BEGIN, _END, "</think>"))
            pieces.append(f"{_BEGIN}\n{body}\n{_END}")
        return "\n".join(pieces)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the calls after the thought; the thought and all other text become the content."""

        def read_rest(rest: str) -> Message:
            return scan_turn(rest, self._opening, self._read_block, (_BEGIN, _END))

        thought, message = read_after_thought(text, "</think>", read_rest)
        return with_text(message, thought + message.text)
