"""How does a model without a tool format call tools? In plain text: Thought, Action, Action Input, Observation (ReAct).

Easy to get wrong: a model that goes on behind its action and makes up the observation. Sampling stops at
`Observation:`, and of a turn with several actions the last counts.

Source: ReAct 2022, arXiv:2210.03629.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import arguments_of, dump_json, message_of, parse_json, schemas, without_signs
from whetstone.chat.message import Message, ToolCall, ToolSpec, user

_OBSERVATION = "Observation:"
_ACTION = re.compile(r"^Action:[ \t]*(.*)$", re.MULTILINE)
_INPUT = re.compile(r"^Action Input:[ \t]*(.*)", re.MULTILINE | re.DOTALL)
_BRACKETS = re.compile(r"([\w.-]+)\[(.*)\]\s*", re.DOTALL)


class React:
    """`Action: name` and `Action Input: {…}`, or `Action: name[text]`; answers come as `Observation: …`."""

    markers = (_OBSERVATION, "Action:", "Action Input:")
    stops = (_OBSERVATION,)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and the form of a turn."""
        if not tools:
            return ""
        return (
            f"You can use these tools:\n{schemas(tools)}\n\nWrite each step as\n"
            "Thought: what you think\nAction: the name of a tool\nAction Input: its arguments as a JSON object\n\n"
            "You are then told an Observation. When you know the answer, write it without an action."
        )

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its call.

        Raises:
            ValueError: There are several; a turn in this format holds one.
        """
        if not message.tool_calls:
            return message.text
        if len(message.tool_calls) > 1:
            raise ValueError("a turn in this format holds one call")
        (call,) = message.tool_calls
        body = without_signs(arguments_of(call), self.markers)
        before = f"{message.text}\n" if message.text else ""
        return f"{before}Action: {call.name}\nAction Input: {body}"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """The last action before an observation, and what is said before it."""
        own = text.partition(_OBSERVATION)[0]
        actions = list(_ACTION.finditer(own))
        if not actions:
            return message_of(text, [])
        action = actions[-1]
        said, behind = own[: action.start()].rstrip("\n"), own[action.end() :]
        given = _INPUT.search(behind)
        if given is not None:
            name, body = action[1].strip(), given[1].strip()
            try:
                if not isinstance(parse_json(body), dict):
                    raise ValueError(f"got {body[:40]!r}")
            except ValueError as error:
                only = _only_text(name, tools)
                if only is not None:
                    return message_of(said, [ToolCall(name, dump_json({only: body}))])
                return message_of(said, [f"an Action Input must be a JSON object: {error}"])
            return message_of(said, [ToolCall(name, body)])
        inline = _BRACKETS.fullmatch(own[action.start(1) :])
        if inline is None:
            return message_of(said, ["an Action is followed by an Action Input"])
        only = _only_text(inline[1], tools)
        return message_of(said, [ToolCall(inline[1], dump_json({only or "input": inline[2]}))])

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer as an observation in a message of its own."""
        return [user(f"{_OBSERVATION} {m.text}") if m.role == "tool" else m for m in messages]


def _only_text(name: str, tools: Sequence[ToolSpec]) -> str | None:
    return next((tool.only_text_parameter for tool in tools if tool.name == name), None)
