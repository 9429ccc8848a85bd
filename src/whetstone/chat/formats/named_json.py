"""Tool-call formats that write the tool's name between markers, and only the arguments as JSON.

    <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>        DeepSeek-V3.1
    <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>        Kimi-K2

`families` has the options of each model family.

Note:
    A string in the arguments may contain the closing marker. Therefore the arguments are decoded as JSON up to the end
    of the value, and the marker is expected after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from whetstone.chat.formats.json_call import (
    decode_json,
    dump_without_markers,
    parse_call_arguments,
    require_same_calls,
    skip_space,
)
from whetstone.chat.formats.scanning import Found, pattern_of, scan_turn, skip_block, split_markers
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec

_GROUPS = {
    "{name}": r"(?P<name>[^\s<>\[\]{}|]+?)(?<!\.)",
    "{id}": r"(?P<id>[^\s<>\[\]{}|]*?)",
    "{index}": r"(?P<index>\d+)",
}
_OPENING = re.compile(r"<[^<>{]*>?|\[[A-Z_]+\]")


@dataclass(frozen=True)
class NamedJson:
    """Tool-call format with the name between markers and the arguments as JSON, configured by its markers.

    Args:
        call: Text of a call, with `{name}`, `{arguments}`, and optionally `{id}` and `{index}` (in the turn, from 0).
        begin: Text before the first call of a turn.
        end: Text after the last call of a turn.
        between: Text between two calls.
        prefix: Text before the name that a model may omit.
        tail: Text after `end` that a model may omit.
        must_close: Whether a turn that has `begin` must have `end`.
    """

    call: str
    begin: str = ""
    end: str = ""
    between: str = ""
    stops: tuple[str, ...] = ()
    prefix: str = ""
    tail: str = ""
    must_close: bool = False

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """Texts that mark the start, the parts and the end of tool calls in this format, such as `<tool_call>`."""
        return split_markers(self.begin, self.end, self.call)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        return render_tool_prompt(tools, self._around([self._call("<function name>", "<object of arguments>", 0)]))

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls.

        Raises:
            ValueError: If the arguments of a call are not a JSON object, or the call would be parsed as a different
                call.
        """
        if not message.tool_calls:
            return message.text
        calls = [
            self._call(call.name, dump_without_markers(parse_call_arguments(call), self.markers), index)
            for index, call in enumerate(message.tool_calls)
        ]
        require_same_calls(self.read(self._around(calls), tools), message)
        return message.text + self._around(calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse every call, and the text around them."""
        message = scan_turn(text, self._opening, self._read_call, self.markers)
        if self.must_close and not message.malformed and text.count(self.begin) > text.count(self.end):
            message = replace(message, malformed=(f"{self.begin} is not closed with {self.end}",))
        return message

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)

    @cached_property
    def _sign(self) -> str:
        """Marker at which the text of a call starts."""
        match = _OPENING.match(self.call)
        if match is None:
            raise ValueError(f"a call must start with a marker: {self.call}")
        return match.group()

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        begin = rf"(?:{pattern_of(self.begin)}\s*)?" if self.begin else ""
        return re.compile(begin + re.escape(self._sign))

    @cached_property
    def _header(self) -> re.Pattern[str]:
        """Pattern of the text between the first marker of a call and its arguments."""
        header = self.call[len(self._sign) :].partition("{arguments}")[0]
        pieces = [_GROUPS.get(piece) or pattern_of(piece) for piece in re.split(r"(\{\w+\})", header) if piece.strip()]
        if self.prefix:
            escaped = re.escape(self.prefix)
            pieces = [piece.replace(escaped, f"(?:{escaped})?") for piece in pieces]
        return re.compile(r"\s*" + r"\s*".join(pieces) + r"\s*")

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        closing = self.call.partition("{arguments}")[2]
        tail = rf"(?:\s*{pattern_of(self.tail)})?" if self.tail else ""
        end = rf"(?:\s*{pattern_of(self.end)}{tail})?" if self.end else ""
        return re.compile(rf"\s*{pattern_of(closing)}{end}")

    @cached_property
    def _last_marker(self) -> str:
        return (self.call.partition("{arguments}")[2].split() or [""])[-1]

    def _read_call(self, match: re.Match[str]) -> tuple[list[Found], int]:
        text = match.string

        def malformed(reason: str, position: int) -> tuple[list[Found], int]:
            return [reason], skip_block(text, position, (self._last_marker,), self._opening)

        header = self._header.match(text, match.end())
        if header is None:
            got = text[match.end() : match.end() + 40]
            return malformed(f"{self._sign} must be followed by the name of a tool, got {got!r}", match.end())
        name, groups = header["name"], header.groupdict()
        try:
            value, end = decode_json(text, header.end())
        except ValueError as error:
            return malformed(f"the arguments of {name} must be a JSON object: {error}", header.end())
        if not isinstance(value, dict):
            return malformed(f"the arguments of {name} must be a JSON object", end)
        closed = self._closing.match(text, end)
        if closed is None:
            return malformed(f"a call of {name} is not closed with {self._last_marker}", end)
        call_id = groups.get("id") or ""
        if "index" in groups:
            call_id = f"functions.{name}:{groups['index']}"
        arguments = text[skip_space(text, header.end()) : end]
        return [ToolCall(name, arguments, call_id)], closed.end()

    def _call(self, name: str, arguments: str, index: int) -> str:
        call_id = f"call{index:05d}"
        filled = self.call.replace("{index}", str(index)).replace("{id}", call_id)
        before, _, after = filled.partition("{arguments}")
        return before.replace("{name}", name) + arguments + after

    def _around(self, calls: Sequence[str]) -> str:
        return self.begin + self.between.join(calls) + self.end + self.tail
