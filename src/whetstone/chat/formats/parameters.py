"""How do models call tools that write each argument between tags? Each is one line of a table.

    <tool_call><function=name><parameter=key>value</parameter></function></tool_call>        Qwen3-Coder
    <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>        GLM-4.5

Easy to get wrong: `42` between tags is a number or a text. What the tool's schema says decides; where it says nothing,
it is read as JSON, and where it is none, as a text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from whetstone.chat.formats.json_call import arguments_of, message_of
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec

_GROUPS = {
    "{name}": r"(?P<name>[^\s<>\"|{}]+)",
    "{index}": r"\d+",
    "{key}": r"(?P<key>[^<>\"|]*?)",
    "{type}": r"(?P<type>\w+)",
    "{value}": r"(?P<value>.*?)",
}
_TYPES = ((bool, "boolean"), (str, "string"), (int | float, "number"), (list, "array"), (dict, "object"))


@dataclass(frozen=True)
class Parameters:
    """One such way.

    Args:
        call: A call, with `{name}`, `{parameters}`, and where there is one `{index}` (in the turn, from 1).
        parameter: One of them, with `{key}`, `{value}`, and where it says whether a value is a text `{type}`.
        begin: In front of the first call of a turn.
        end: Behind the last.
        addressed: What stands in front of `begin` and names the tool again, as a regular expression.
        types: What `{type}` says: the JSON type's name, or `true` for a text and `false` for all else.
    """

    call: str
    parameter: str
    begin: str = ""
    end: str = ""
    between: str = "\n"
    types: str = "names"
    addressed: str = ""
    stops: tuple[str, ...] = ()

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """The signs in a call and around calls."""
        pieces = [self.begin, self.end, *re.split(r"\{\w+\}", self.call + self.parameter)]
        return tuple(dict.fromkeys(sign for sign in map(str.strip, pieces) if len(sign) > 2 and "<" in sign))

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        written = (
            self.parameter.replace("{key}", "<parameter>").replace("{value}", "<value>").replace("{type}", "<type>")
        )
        return told(tools, self._around([self._filled("<function name>", written, 1)]))

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls.

        Raises:
            ValueError: A call could not be read back: a text in it holds the end of a parameter.
        """
        if not message.tool_calls:
            return message.text
        known = {tool.name: tool.properties for tool in tools}
        calls = []
        for index, call in enumerate(message.tool_calls, start=1):
            arguments = arguments_of(call)
            if not isinstance(arguments, dict):
                raise ValueError(f"{call.name}: arguments must be a JSON object, got {call.arguments[:60]}")
            schemas = known.get(call.name, {})
            body = "".join(self._parameter(key, value, schemas.get(key, {})) for key, value in arguments.items())
            calls.append(self._filled(call.name, body, index))
            back = self.read(calls[-1], tools).tool_calls
            if [(one.name, json.loads(one.arguments)) for one in back] != [(call.name, arguments)]:
                raise ValueError(f"{call.name}: {call.arguments[:60]} is a call this format cannot express")
        return message.text + self._around(calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Every call in order; what stands before the first is what the model says."""
        known = {tool.name: tool.properties for tool in tools}
        opening = self._patterns[0]
        first = opening.search(text)
        if first is None:
            return message_of(text, [])
        found: list[ToolCall | str] = []
        begun: re.Match[str] | None = first
        while begun is not None:
            call, place = self._call(text, begun, known.get(begun["name"], {}))
            found.append(call)
            begun = opening.search(text, place) if isinstance(call, ToolCall) else None
        said = text[: first.start()].rstrip().removesuffix(self.begin.strip())
        if self.addressed:
            said = re.sub(rf"\s*{self.addressed}\s*\Z", "", said)
        return message_of(said.rstrip("\n"), found)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
        """(the beginning of a call, a parameter, the end of a call)"""
        before, _, behind = self.call.partition("{parameters}")
        opening, parameter, closing = map(_pattern, (before, self.parameter, behind))
        return re.compile(opening), re.compile(parameter, re.DOTALL), re.compile(closing)

    def _call(
        self, text: str, begun: re.Match[str], schemas: Mapping[str, Mapping[str, Any]]
    ) -> tuple[ToolCall | str, int]:
        """(the call that begins so, or what is wrong with it; where it ends)"""
        _, parameter, closing = self._patterns
        arguments: dict[str, Any] = {}
        place = begun.end()
        # parameter by parameter: a text in one may say the end of a call
        while (one := parameter.match(text, place)) is not None:
            key = one["key"].strip()
            arguments[key] = _value(one["value"], one.groupdict().get("type"), schemas.get(key, {}))
            place = one.end()
        closed = closing.match(text, place)
        if closed is None:
            end = self.call.partition("{parameters}")[2].strip()
            return f"a call of {begun['name']} holds parameters and is closed with {end}", place
        return ToolCall(begun["name"], json.dumps(arguments)), closed.end()

    def _parameter(self, key: str, value: Any, schema: Mapping[str, Any]) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, str) and _value(text, None, schema) != value and "{type}" not in self.parameter:
            text = json.dumps(value, ensure_ascii=False)  # a text that reads like a number, of a tool nobody knows
        kind = next((name for kind, name in _TYPES if isinstance(value, kind)), "null")
        kind = kind if self.types == "names" else json.dumps(kind == "string")
        before, _, behind = self.parameter.partition("{value}")
        return before.replace("{key}", key).replace("{type}", kind) + text + behind

    def _filled(self, name: str, parameters: str, index: int) -> str:
        before, _, behind = self.call.partition("{parameters}")
        return before.replace("{name}", name).replace("{index}", str(index)) + parameters + behind

    def _around(self, calls: Sequence[str]) -> str:
        return self.begin + self.between.join(calls) + self.end


def _value(text: str, kind: str | None, schema: Mapping[str, Any]) -> Any:
    """What a text between tags means.

    Args:
        kind: What the call itself says of its type: a type's name, or `true` where it is a text.
    """
    if kind in ("string", "true") or (kind is None and schema.get("type") == "string"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:  # some templates show lists and objects as Python does
        value = ast.literal_eval(text.strip())
        json.dumps(value)
        return value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _pattern(form: str) -> str:
    """What matches the form. Blanks between tags may be missing or more; values lose one line break at each end."""
    pieces = re.split(r"(\{\w+\})", form)
    made = ""
    for index, piece in enumerate(pieces):
        if piece in _GROUPS:
            made += _GROUPS[piece]
            continue
        begins = index and pieces[index - 1] == "{value}"
        ends = index + 1 < len(pieces) and pieces[index + 1] == "{value}"
        core = r"\s*".join(re.escape(tag) for tag in re.split(r"(?<=>)\s*(?=<)", piece.strip()))
        before = r"\n?" if begins and piece.startswith("\n") else "" if begins else r"\s*"
        behind = r"\n?" if ends and piece.endswith("\n") else "" if ends else r"\s*"
        made += before + core + behind
    return made
