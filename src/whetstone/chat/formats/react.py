"""Tool calls in plain text for models without a tool format: Thought, Action, Action Input, Observation (ReAct).

Note:
    A model may continue after its action and invent the observation. Sampling stops at `Observation:`, and of several
    actions in a turn the last one counts.

Source: ReAct 2022, arXiv:2210.03629.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import (
    build_message,
    dump_json,
    dump_without_markers,
    parse_call_arguments,
    parse_strict_json,
    write_schemas,
)
from whetstone.chat.message import Message, ToolCall, ToolSpec, user

_OBSERVATION = "Observation:"
_ACTION = re.compile(r"^Action:[ \t]*(.*)$", re.MULTILINE)
_INPUT = re.compile(r"^Action Input:[ \t]*(.*)", re.MULTILINE | re.DOTALL)
_BRACKETS = re.compile(r"([\w.-]+)\[(.*)\]\s*", re.DOTALL)


class React:
    """Tool-call format ReAct: `Action: name` and `Action Input: {…}`, or `Action: name[text]`.

    Results are written as `Observation: …`.
    """

    markers = (_OBSERVATION, "Action:", "Action Input:")
    stops = (_OBSERVATION,)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with the form of a step; empty without tools."""
        if not tools:
            return ""
        return (
            f"You can use these tools:\n{write_schemas(tools)}\n\nWrite each step as\n"
            "Thought: what you think\nAction: the name of a tool\nAction Input: its arguments as a JSON object\n\n"
            "You are then told an Observation. When you know the answer, write it without an action."
        )

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its only call.

        Raises:
            ValueError: If there are several calls, because a turn in this format contains one.
        """
        if not message.tool_calls:
            return message.text
        if len(message.tool_calls) > 1:
            raise ValueError("a turn in this format holds one call")
        (call,) = message.tool_calls
        body = dump_without_markers(parse_call_arguments(call), self.markers)
        before = f"{message.text}\n" if message.text else ""
        return f"{before}Action: {call.name}\nAction Input: {body}"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the last action before an observation, and the text before it."""
        own = text.partition(_OBSERVATION)[0]
        actions = list(_ACTION.finditer(own))
        if not actions:
            return build_message(text, [])
        action = actions[-1]
        text_before, after = own[: action.start()].rstrip("\n"), own[action.end() :]
        arguments = _INPUT.search(after)
        if arguments is not None:
            name, body = action[1].strip(), arguments[1].strip()
            try:
                if not isinstance(parse_strict_json(body), dict):
                    raise ValueError(f"got {body[:40]!r}")
            except ValueError as error:
                only = _only_text(name, tools)
                if only is not None:
                    return build_message(text_before, [ToolCall(name, dump_json({only: body}))])
                return build_message(text_before, [f"an Action Input must be a JSON object: {error}"])
            return build_message(text_before, [ToolCall(name, body)])
        inline = _BRACKETS.fullmatch(own[action.start(1) :])
        if inline is None:
            return build_message(text_before, ["an Action is followed by an Action Input"])
        only = _only_text(inline[1], tools)
        return build_message(text_before, [ToolCall(inline[1], dump_json({only or "input": inline[2]}))])

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return each tool result as an observation in a separate user message."""
        return [user(f"{_OBSERVATION} {m.text}") if m.role == "tool" else m for m in messages]


def _only_text(name: str, tools: Sequence[ToolSpec]) -> str | None:
    return next((tool.only_text_parameter for tool in tools if tool.name == name), None)
