"""How do models call tools that put the name into signs of their own, and only the arguments into JSON?

    <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>        DeepSeek-V3.1
    <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>        Kimi-K2

Each is one line of a table: how a call looks (`call`), and what stands around all calls of a turn. What is written and
what is read come from that line.

Easy to get wrong: a text in the arguments may say the closing sign. So the arguments are read as JSON up to where it
ends, and not up to a sign.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from whetstone.chat.formats.json_call import arguments_of, message_of, without_signs
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec

_GROUPS = {"{name}": r"(?P<name>[^\s<>\[\]{}|:]+?)", "{id}": r"(?P<id>[^\s<>\[\]{}|]*?)", "{index}": r"(?P<index>\d+)"}


@dataclass(frozen=True)
class NamedJson:
    """One such way.

    Args:
        call: A call, with `{name}`, `{arguments}`, and where there are such `{id}` and `{index}` (in the turn, from 0).
        begin: In front of the first call of a turn.
        end: Behind the last.
        between: Two calls.
    """

    call: str
    begin: str = ""
    end: str = ""
    between: str = ""
    stops: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The signs in a call and around calls."""
        pieces = [self.begin, self.end, *re.split(r"\{\w+\}", self.call)]
        return tuple(dict.fromkeys(sign for piece in pieces for sign in piece.split() if _is_sign(sign)))

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        return told(tools, self._around([self._call("<function name>", "<object of arguments>", 0)]))

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls."""
        if not message.tool_calls:
            return message.text
        calls = [
            self._call(call.name, without_signs(arguments_of(call), self.markers), index)
            for index, call in enumerate(message.tool_calls)
        ]
        return message.text + self._around(calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Every call in order; what stands before the first is what the model says."""
        before, _, behind = self.call.partition("{arguments}")
        opening, decoder, place = _pattern(before), json.JSONDecoder(), 0
        found: list[ToolCall | str] = []
        said: str | None = None
        while (match := opening.search(text, place)) is not None:
            said = text[: match.start()] if said is None else said
            try:
                value, place = decoder.raw_decode(text, _past_space(text, match.end()))
            except (ValueError, RecursionError) as error:
                found.append(f"the arguments of {match['name']} are a JSON object: {error}")
                break
            if not isinstance(value, dict):
                found.append(f"the arguments of {match['name']} are a JSON object")
            else:
                groups = match.groupdict()
                call_id = groups.get("id") or ""
                if "index" in groups:
                    call_id = f"functions.{match['name']}:{groups['index']}"
                found.append(ToolCall(match["name"], json.dumps(value), call_id))
            closing = behind.strip()
            if closing and not text.startswith(closing, _past_space(text, place)):
                found[-1] = f"a call of {match['name']} was not closed with {closing}"
        if said is None:
            sign = self.begin.strip() or before.partition("{")[0].strip()
            return message_of(text, [f"{sign} and no call"] if sign and sign in text else [])
        return message_of(said.removesuffix(self.begin).rstrip("\n") if self.begin else said, found)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)

    def _call(self, name: str, arguments: str, index: int) -> str:
        call_id = f"call{index:05d}"
        filled = self.call.replace("{index}", str(index)).replace("{id}", call_id)
        before, _, behind = filled.partition("{arguments}")
        return before.replace("{name}", name) + arguments + behind

    def _around(self, calls: Sequence[str]) -> str:
        return self.begin + self.between.join(calls) + self.end


def _pattern(form: str) -> re.Pattern[str]:
    """What matches the form, with any blank where it has some."""
    pieces = re.split(r"(\{\w+\})", form)
    return re.compile("".join(_GROUPS.get(piece) or _blanks(piece) for piece in pieces))


def _blanks(text: str) -> str:
    """A text as a pattern in which blanks at its ends may be missing or more."""
    core = re.escape(text.strip())
    if text and not core:
        return r"\s+"
    return rf"\s*{core}\s*" if text != text.strip() else core


def _past_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _is_sign(text: str) -> bool:
    return len(text) > 2 and ("<" in text or "[" in text)
