"""How do Hermes and Qwen models call tools? A JSON object inside `<tool_call>` tags.

Easy to get wrong: calls inside a `<think>` block are thoughts, not calls; and results go back in a
*user* message, neighbouring ones in the same, which is what the models' own templates do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import parsed, read_call, schemas, written
from whetstone.chat.formats.told import results_of
from whetstone.chat.message import Message, Text, ToolCall, ToolSpec

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class Hermes:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    markers = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, one a line, and how to call them."""
        if not tools:
            return ""
        return (
            "# Tools\n\nYou may call functions to help with the task. Their signatures, as JSON:\n"
            f"<tools>\n{schemas(tools)}\n</tools>\n\n"
            "For each call, answer with a JSON object inside tags:\n"
            '<tool_call>\n{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
        )

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls, each in tags of its own."""
        pieces = [message.text] if message.text else []
        for call in message.tool_calls:
            body = written(call, arguments="arguments", signs=("<tool_call>", "</tool_call>", "</think>"))
            pieces.append(f"<tool_call>\n{body}\n</tool_call>")
        return "\n".join(pieces)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Every tagged call after the last `</think>`; the rest is what the model says."""
        before, end_of_thought, spoken = text.rpartition("</think>")
        calls: list[ToolCall] = []
        malformed: list[str] = []
        for match in _CALL.finditer(spoken):
            parsed = _read_call(match.group(1))
            if isinstance(parsed, ToolCall):
                calls.append(parsed)
            else:
                malformed.append(parsed)
        rest = _CALL.sub("", spoken)
        if "<tool_call>" in rest:
            malformed.append("a <tool_call> was not closed with </tool_call>")
            rest = rest.partition("<tool_call>")[0]
        if calls or malformed:
            rest = rest.rstrip("\n")  # the line break that sets off the tags
        said = before + end_of_thought + rest
        return Message("assistant", (Text(said),) if said else (), tuple(calls), malformed=tuple(malformed))

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Neighbouring tool answers share one user message."""
        return results_of(messages)


def _read_call(inside: str) -> ToolCall | str:
    """The call, or what is wrong with it."""
    value, wrong = parsed(inside)
    return f"a <tool_call> holds a JSON object: {wrong}" if wrong else read_call(value, arguments=("arguments",))
