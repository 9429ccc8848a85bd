"""Tool-call formats that write calls as JSON objects between two markers.

    <tool_calls>[{"name": …, "arguments": {…}}]</tool_calls>        Apriel
    <|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>        Command R
    <longcat_tool_call>{"name": …, "arguments": {…}}</longcat_tool_call>        LongCat, one block per call

`families` has the options of each model family.

Note:
    If a format has a closing marker, a block without it was truncated: it is malformed, although its JSON may be
    complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from whetstone.chat.formats.json_call import build_message, decode_calls, dump_without_markers, parse_call_arguments
from whetstone.chat.formats.scanning import Found, join_text, pattern_of, scan_turn, skip_block, split_markers
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec


@dataclass(frozen=True)
class JsonBlock:
    """Tool-call format with calls as JSON between markers, configured by its markers and keys.

    Args:
        begin: Text before the calls; empty if the calls are the whole turn.
        end: Text after the calls; empty if a block ends with its JSON.
        name: Key of the tool's name; empty if a call is an object whose only key is the name.
        arguments: Key of the arguments.
        layout: How several calls are written: as one list, as objects on lines of one block, or as one block per call.
            All three are parsed.
        also: Other texts that open a block.
        closings: Texts that may follow a block, if it has no closing marker.
    """

    begin: str
    end: str = ""
    name: str = "name"
    arguments: str = "arguments"
    layout: Literal["list", "lines", "blocks"] = "list"
    stops: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """Texts that open and close a block, one per tag."""
        signs = (self.begin.strip() or self.also[0], self.end.strip())
        return tuple(dict.fromkeys(tag for sign in signs if sign for tag in split_markers(sign) or (sign,)))

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        call = '{"<function name>": <object of arguments>}'
        if self.name:
            call = f'{{"{self.name}": <function name>, "{self.arguments}": <object of arguments>}}'
        return render_tool_prompt(tools, self._around([call]))

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls.

        Raises:
            ValueError: If the arguments of a call are not a JSON object, or the message has text and calls must be the
                whole turn.
        """
        if not message.tool_calls:
            return message.text
        if message.text and not self.begin:
            raise ValueError("a turn in this format contains either text or calls")
        return message.text + self._around([self._write_call(call) for call in message.tool_calls])

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the calls of all blocks, and the text around them."""
        if not self.begin and (bare := self._read_bare(text)) is not None:
            return bare
        return scan_turn(text, self._opening, self._read_block, self._reserved)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)

    @cached_property
    def _reserved(self) -> tuple[str, ...]:
        signs = (self.begin.strip(), *self.also, self.end.strip())
        return tuple(sign for sign in signs if sign and not sign.isalnum() and not sign.startswith("```"))

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        signs = sorted((sign for sign in (self.begin, *self.also) if sign), key=len, reverse=True)
        # a word opens a block only before JSON, and a code block contains calls only if it starts with one
        call = rf"""(?=\s*\[?\s*{{\s*["'](?:id|type|{re.escape(self.name)}|{re.escape(self.arguments)})["']\s*:)"""
        following = [
            r"(?=\s*[\[{])" if sign.strip().isalnum() else call if sign.startswith("```") else "" for sign in signs
        ]
        return re.compile("|".join(map("{}{}".format, map(pattern_of, signs), following)))

    @cached_property
    def _bare(self) -> re.Pattern[str]:
        return re.compile(rf'\[?\s*{{\s*"(?:{re.escape(self.name)}|{re.escape(self.arguments)})"\s*:')

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        signs = [self.end] if self.end else sorted(self.closings, key=len, reverse=True)
        return re.compile(r"\s*(?:" + "|".join(map(pattern_of, signs)) + ")")

    def _read_block(self, match: re.Match[str]) -> tuple[list[Found], int]:
        text, position, sign = match.string, match.end(), match.group().strip()
        blocks: list[Found] = []
        while (start := _skip_separators(text, position)) < len(text) and text[start] in "[{":
            try:
                calls, position = decode_calls(text, start, name=self.name, arguments=self.arguments)
            except ValueError as error:
                blocks.append(f"{sign} must be followed by calls as JSON: {error}")
                return blocks, skip_block(text, position, (self.end.strip(),), self._opening)
            blocks += calls
        if not blocks:
            blocks = [f"{sign} must be followed by calls as JSON, got {text[position : position + 40]!r}"]
            return blocks, skip_block(text, position, (self.end.strip(),), self._opening)
        closed = self._closing.match(text, position)
        if self.end and closed is None:
            blocks = [*(one for one in blocks if isinstance(one, str)), f"{sign} is not closed with {self.end.strip()}"]
            return blocks, skip_block(text, position, (self.end.strip(),), self._opening)
        return blocks, position if closed is None else closed.end()

    def _read_bare(self, text: str) -> Message | None:
        """Parse a turn that starts with calls without a marker.

        The result is None if it starts with anything else.
        """
        body = text.strip()
        if not body.startswith(("[", "{")):
            return None
        blocks: list[Found] = []
        pieces: list[str] = []
        position = 0
        while True:
            start = _skip_separators(body, position)
            if body[start : start + 1] not in ("[", "{"):  # text, which another block may follow
                match = self._bare.search(body, start)
                if match is None:
                    break
                pieces.append(body[position : match.start()])
                start = match.start()
            try:
                calls, end = decode_calls(body, start, name=self.name, arguments=self.arguments)
            except ValueError as error:
                if self._bare.match(body, start) is None:
                    break
                return build_message("", [*blocks, f"a call must be JSON: {error}"])
            if not any(isinstance(call, ToolCall) or f'"{self.name}"' in body[start:end] for call in calls):
                break
            blocks += calls
            position = end
        return build_message(join_text([*pieces, body[position:]]).strip(), blocks) if blocks else None

    def _write_call(self, call: ToolCall) -> str:
        arguments = parse_call_arguments(call)
        value = {self.name: call.name, self.arguments: arguments} if self.name else {call.name: arguments}
        return dump_without_markers(value, self.markers)

    def _around(self, calls: Sequence[str]) -> str:
        if self.layout == "blocks":
            return "\n".join(f"{self.begin}{call}{self.end}" for call in calls)
        body = f"[{', '.join(calls)}]" if self.layout == "list" else "\n".join(calls)
        return self.begin + body + self.end


def _skip_separators(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,;":
        position += 1
    return position
