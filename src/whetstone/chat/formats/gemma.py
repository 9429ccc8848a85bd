"""How do Gemma models call tools? `call:name{key:<|"|>text<|"|>,count:2}` between two signs.

Easy to get wrong: texts stand between signs of their own and hold whatever they like, commas and braces among it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.chat.formats.json_call import arguments_of, message_of
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec

_CALL = re.compile(r"call:([^\s{}<>|:]+)\s*")
_KEY = re.compile(r"[^:{}\[\],]+")
_WORD = re.compile(r"[^,{}\[\]\s]+")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_DEEPEST = 50


@dataclass(frozen=True)
class Gemma:
    """One such way.

    Args:
        begin: In front of each call.
        end: Behind it.
        quote: At both ends of a text.
    """

    begin: str
    end: str
    quote: str
    stops: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The signs."""
        return (self.begin, self.end, self.quote)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        return told(tools, f"{self.begin}call:name{{key:{self.quote}text{self.quote},other:2}}{self.end}")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls.

        Raises:
            ValueError: A text in a call holds the sign around texts, or a key one that ends keys.
        """
        calls = ""
        for call in message.tool_calls:
            arguments = arguments_of(call)
            if not isinstance(arguments, dict):
                raise ValueError(f"{call.name}: arguments must be a JSON object, got {call.arguments[:60]}")
            written = f"{self.begin}call:{call.name}{self._value(arguments)}{self.end}"
            back = self.read(written, tools).tool_calls
            if [(one.name, json.loads(one.arguments)) for one in back] != [(call.name, arguments)]:
                raise ValueError(f"{call.name}: {call.arguments[:60]} is a call this format cannot express")
            calls += written
        return message.text + calls

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Every call in order; what stands before the first is what the model says."""
        said, there, _ = text.partition(self.begin)
        if not there:
            return message_of(text, [])
        found: list[ToolCall | str] = []
        place = len(said)
        while text.startswith(self.begin, place):
            match = _CALL.match(text, place + len(self.begin))
            if match is None:
                found.append(f"behind {self.begin} stands call:name{{…}}")
                break
            try:
                value, place = self._read(text, match.end(), 0)
                if not isinstance(value, dict) or not text.startswith(self.end, place):
                    raise ValueError(f"not closed with {self.end}")
            except ValueError as error:
                found.append(f"a call of {match[1]}: {error}")
                break
            found.append(ToolCall(match[1], json.dumps(value)))
            place += len(self.end)
            while place < len(text) and text[place].isspace():
                place += 1
        return message_of(said + (text[place:] if place > len(said) and found else ""), found)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{self._value(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._value, value)) + "]"
        return json.dumps(value)

    def _read(self, text: str, place: int, depth: int) -> tuple[Any, int]:
        """(the value that begins here, where it ends)"""
        if depth > _DEEPEST:
            raise ValueError("its arguments are too deep to be read")
        if text.startswith(self.quote, place):
            begins = place + len(self.quote)
            ends = text.find(self.quote, begins)
            if ends < 0:
                raise ValueError(f"a text was not closed with {self.quote}")
            return text[begins:ends], ends + len(self.quote)
        if text[place : place + 1] in ("{", "["):
            return self._collection(text, place, depth)
        word = _WORD.match(text, place)
        if word is None:
            raise ValueError(f"a value was to begin at {text[place : place + 20]!r}")
        bare = word[0].partition(self.end)[0] or word[0]
        if bare in _WORDS:
            return _WORDS[bare], place + len(bare)
        try:
            return json.loads(bare), place + len(bare)
        except ValueError:
            raise ValueError(f"{bare[:30]!r} is no value") from None

    def _collection(self, text: str, place: int, depth: int) -> tuple[Any, int]:
        named = text[place] == "{"
        closing = "}" if named else "]"
        values: list[tuple[str, Any]] = []
        place += 1
        while not text.startswith(closing, place):
            key = ""
            if named:
                if text.startswith(self.quote, place):
                    key, place = self._read(text, place, depth + 1)
                elif (match := _KEY.match(text, place)) is not None:
                    key, place = match[0].strip(), match.end()
                if not text.startswith(":", place):
                    raise ValueError(f"a key was to stand at {text[place : place + 20]!r}")
                place += 1
            value, place = self._read(text, place, depth + 1)
            values.append((key, value))
            if text.startswith(",", place):
                place += 1
            elif not text.startswith(closing, place):
                raise ValueError(f"{closing} or a comma was to stand at {text[place : place + 20]!r}")
        return (dict(values) if named else [value for _, value in values]), place + 1
