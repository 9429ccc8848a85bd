"""How do Hermes and Qwen models call tools? A JSON object inside `<tool_call>` tags.

Easy to get wrong: calls inside a `<think>` block are thoughts, not calls; and results go back in a
*user* message, neighbouring ones in the same, which is what the models' own templates do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.message import Message, Text, ToolCall, ToolSpec, user

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class Hermes:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    markers = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, one a line, and how to call them."""
        if not tools:
            return ""
        schemas = "\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools)
        return (
            "# Tools\n\nYou may call functions to help with the task. Their signatures, as JSON:\n"
            f"<tools>\n{schemas}\n</tools>\n\n"
            "For each call, answer with a JSON object inside tags:\n"
            '<tool_call>\n{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
        )

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls, each in tags of its own."""
        pieces = [message.text] if message.text else []
        for call in message.tool_calls:
            body = json.dumps({"name": call.name, "arguments": json.loads(call.arguments)}, ensure_ascii=False)
            if "</tool_call>" in body:
                raise ValueError(f"{call.name}: an argument holds </tool_call>, which this format cannot express")
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


def _read_call(inside: str) -> ToolCall | str:
    """The call, or what is wrong with it."""
    try:
        call = json.loads(inside)
    except (ValueError, RecursionError) as error:
        return f"a <tool_call> holds a JSON object: {error}"
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return 'a <tool_call> holds an object with "name" and "arguments"'
    arguments = call["arguments"]
    # some models write the arguments as a string of JSON; it is the same call
    return ToolCall(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
