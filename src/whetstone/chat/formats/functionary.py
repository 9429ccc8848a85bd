"""How do Functionary models call tools, in their third version? Each part of a turn says to whom it goes: `>>>name`.

Easy to get wrong: the generation prompt ends in the first `>>>`, so a turn begins with a name; `all` is everybody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import arguments_of, message_of, without_signs
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec

_SIGN = ">>>"
_TO = re.compile(r">>>([^\s>]+)\n")


class Functionary:
    """`>>>name` and a line of JSON; `>>>all` and what is said."""

    markers = (_SIGN,)
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        return told(tools, f"{_SIGN}<function name>\n<object of arguments>")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls."""
        if not message.tool_calls:
            return message.text
        said = f"{_SIGN}all\n{message.text}" if message.text else ""
        return said + "".join(
            f"{_SIGN}{call.name}\n{without_signs(arguments_of(call), self.markers)}" for call in message.tool_calls
        )

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """What goes to everybody is what the model says; the rest are calls."""
        parts = _TO.split(text if text.startswith(_SIGN) else _SIGN + text)
        if len(parts) == 1:
            return message_of(text, [])
        said = parts[0].removeprefix(_SIGN)
        found: list[ToolCall | str] = []
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name == "all":
                said += body
                continue
            try:
                value = json.loads(body)
            except (ValueError, RecursionError) as error:
                found.append(f"the arguments of {name} are a JSON object: {error}")
                continue
            if isinstance(value, dict):
                found.append(ToolCall(name, json.dumps(value)))
            else:
                found.append(f"the arguments of {name} are a JSON object")
        return message_of(said, found)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)
