"""How do models call tools that write calls as JSON objects between two signs? Each is one line of a table.

    <tool_calls>[{"name": …, "arguments": {…}}]</tool_calls>        Apriel
    <|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>        Command R

Easy to get wrong: an end that is not there. Where there is a sign for it, calls without it were cut off.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.chat.formats.json_call import arguments_of, message_of, read_call, without_signs
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec


@dataclass(frozen=True)
class JsonBlock:
    """One such way.

    Args:
        begin: In front of the calls.
        end: Behind them; empty: the end of the turn.
        name: The key of the tool's name; empty: a call is an object whose only key is the name.
        arguments: The key of the arguments.
        listed: Calls stand in a list; else one after the other. Both are read.
    """

    begin: str
    end: str = ""
    name: str = "name"
    arguments: str = "arguments"
    listed: bool = True
    stops: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The signs."""
        return tuple(sign for sign in (self.begin.strip(), self.end.strip()) if sign)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        call = '{"<function name>": <object of arguments>}'
        if self.name:
            call = f'{{"{self.name}": <function name>, "{self.arguments}": <object of arguments>}}'
        return told(tools, self._around([call]))

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls."""
        if not message.tool_calls:
            return message.text
        return message.text + self._around([self._call(call) for call in message.tool_calls])

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """The calls behind the sign; what stands before it is what the model says."""
        sign, end = self.begin.strip(), self.end.strip()
        said, there, behind = text.partition(sign)
        if not there:
            return message_of(text, [])
        found: list[ToolCall | str] = []
        decoder, place = json.JSONDecoder(), 0
        while (place := _past(behind, place)) < len(behind) and behind[place] in "[{":
            try:
                value, place = decoder.raw_decode(behind, place)
            except (ValueError, RecursionError) as error:
                found.append(f"behind {sign} stand calls as JSON: {error}")
                break
            found += [self._read(one) for one in (value if isinstance(value, list) else [value])]
        if not found:
            found = [f"behind {sign} stand calls as JSON"]
        elif end and not behind.startswith(end, place) and not any(isinstance(call, str) for call in found):
            found.append(f"{sign} was not closed with {end}")
        return message_of(said.rstrip("\n"), found)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)

    def _call(self, call: ToolCall) -> str:
        arguments = arguments_of(call)
        value = {self.name: call.name, self.arguments: arguments} if self.name else {call.name: arguments}
        return without_signs(value, self.markers)

    def _read(self, value: Any) -> ToolCall | str:
        if self.name:
            named = {**value, "name": value.get(self.name)} if isinstance(value, dict) else value
            return read_call(named, arguments=(self.arguments,))
        if not isinstance(value, dict) or len(value) != 1:
            return "a call is an object of one name and its arguments"
        ((name, arguments),) = value.items()
        return read_call({"name": name, "arguments": arguments}, arguments=("arguments",))

    def _around(self, calls: Sequence[str]) -> str:
        return self.begin + (f"[{', '.join(calls)}]" if self.listed else "\n".join(calls)) + self.end


def _past(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,;":
        place += 1
    return place
