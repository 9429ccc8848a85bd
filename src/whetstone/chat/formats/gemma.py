"""Tool calls of Gemma models: `call:name{key:<|"|>text<|"|>,count:2}` between two markers.

Note:
    Strings are between dedicated markers and may contain anything, including commas and braces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from whetstone.chat.formats.json_call import (
    dump_json,
    parse_call_arguments,
    parse_strict_json,
    require_same_calls,
    skip_space,
)
from whetstone.chat.formats.scanning import Found, scan_turn, skip_block
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec

_CALL = re.compile(r"call:([^\s{}<>|:]+)\s*")
_KEY = re.compile(r"[^:{}\[\],]+")
_WORD = re.compile(r"[^,{}\[\]\s]+")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_DEEPEST = 50


@dataclass(frozen=True)
class Gemma:
    """Tool-call format of Gemma models, configured by its markers.

    Args:
        begin: Marker before each call.
        end: Marker after each call.
        quote: Marker at both ends of a string.
    """

    begin: str
    end: str
    quote: str
    stops: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers of calls and of strings."""
        return (self.begin, self.end, self.quote)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        return render_tool_prompt(tools, f"{self.begin}call:name{{key:{self.quote}text{self.quote},other:2}}{self.end}")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls.

        Raises:
            ValueError: If a string contains the marker around strings, or a key contains a character that ends keys.
        """
        calls = ""
        for call in message.tool_calls:
            calls += f"{self.begin}call:{call.name}{self._value(parse_call_arguments(call))}{self.end}"
        require_same_calls(self.read(calls, tools), message)
        return message.text + calls

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse every call, and the text around them."""
        return scan_turn(text, self._opening, self._read_call, (self.begin, self.end))

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.begin))

    def _read_call(self, opening: re.Match[str]) -> tuple[list[Found], int]:
        text = opening.string
        match = _CALL.match(text, opening.end())
        if match is None:
            reason = (
                f"{self.begin} must be followed by call:name{{…}}, got {text[opening.end() : opening.end() + 40]!r}"
            )
            return [reason], skip_block(text, opening.end(), (self.end,), self._opening)
        try:
            value, position = self._read(text, match.end(), 0)
            if not isinstance(value, dict):
                raise ValueError("its arguments must be between braces")
            position = skip_space(text, position)
            if not text.startswith(self.end, position):
                raise ValueError(f"it is not closed with {self.end}")
        except ValueError as error:
            reason = f"a call of {match[1]}: {error}"
            return [reason], skip_block(text, match.end(), (self.end,), self._opening)
        return [ToolCall(match[1], dump_json(value))], position + len(self.end)

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{self._value(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._value, value)) + "]"
        return dump_json(value)

    def _read(self, text: str, place: int, depth: int) -> tuple[Any, int]:
        """Parse the value at a position; return (value, position after it).

        Raises:
            ValueError: If there is no valid value.
        """
        if depth > _DEEPEST:
            raise ValueError("its arguments are nested too deeply")
        if text.startswith(self.quote, place):
            begins = place + len(self.quote)
            ends = text.find(self.quote, begins)
            if ends < 0:
                raise ValueError(f"a string is not closed with {self.quote}")
            return text[begins:ends], ends + len(self.quote)
        if text[place : place + 1] in ("{", "["):
            return self._collection(text, place, depth)
        word = _WORD.match(text, place)
        if word is None:
            raise ValueError(f"a value is expected at {text[place : place + 20]!r}")
        bare = word[0].partition(self.end)[0] or word[0]
        if bare in _WORDS:
            return _WORDS[bare], place + len(bare)
        try:
            return parse_strict_json(bare), place + len(bare)
        except ValueError:
            raise ValueError(f"{bare[:30]!r} is not a value") from None

    def _collection(self, text: str, place: int, depth: int) -> tuple[Any, int]:
        named = text[place] == "{"
        closing = "}" if named else "]"
        values: list[Any] = []
        keys: dict[str, None] = {}
        place += 1
        while not text.startswith(closing, place):
            key = ""
            if named:
                if text.startswith(self.quote, place):
                    key, place = self._read(text, place, depth + 1)
                elif (match := _KEY.match(text, place)) is not None:
                    key, place = match[0].strip(), match.end()
                if not text.startswith(":", place):
                    raise ValueError(f"a key is expected at {text[place : place + 20]!r}")
                place += 1
            value, place = self._read(text, place, depth + 1)
            if named and key in keys:
                raise ValueError(f'the key "{key}" is repeated')
            keys[key] = None
            values.append(value)
            if text.startswith(",", place):
                place += 1
            elif not text.startswith(closing, place):
                raise ValueError(f"{closing} or a comma is expected at {text[place : place + 20]!r}")
        return (dict(zip(keys, values, strict=True)) if named else values), place + 1
