"""Tool-call formats that write each argument between tags.

    <tool_call><function=name><parameter=key>value</parameter></function></tool_call>        Qwen3-Coder
    <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>        GLM-4.5

`families` has the options of each model family.

Note:
    A value may contain the tag that closes a parameter or a call. A value therefore ends at the first closing tag that
    another parameter or the end of the call follows. Types of values: see `text_values`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from whetstone.chat.formats.json_call import dump_json, has_same_calls, parse_call_arguments, parse_strict_json
from whetstone.chat.formats.scanning import Found, pattern_of, scan_turn, skip_block, split_markers
from whetstone.chat.formats.text_values import declared_types, format_value, member_schema, parse_value
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec, with_text

_GROUPS = {
    "{name}": r"(?P<name>[^\s<>\"|{}]*)",
    "{index}": r"\d+",
    "{key}": r"(?P<key>[^<>\"|]*?)",
    "{type}": r"(?P<type>\w+)",
    "{value}": r"(?P<value>.*?)",
}
_TYPES = ((bool, "boolean"), (str, "string"), (int | float, "number"), (list, "array"), (dict, "object"))
_NEEDS_CDATA = re.compile(r"[<&\n]")


@dataclass(frozen=True)
class Parameters:
    """Tool-call format with one tag per argument, configured by its tags.

    Args:
        call: Text of a call, with `{name}`, `{parameters}`, and optionally `{index}` (in the turn, from 1).
        parameter: Text of an argument, with `{key}`, `{value}`, and optionally `{type}`.
        begin: Text before the first call of a turn.
        end: Text after the last call of a turn.
        between: Text between two calls.
        types: Content of `{type}`: `names` for the name of the JSON type, otherwise `true` for a string and else
            `false`.
        addressed: Regular expression of text before a call or `begin` that names the tool again and may be missing.
        prefix: Text with `{name}` that is written before each call; `addressed` parses it.
        wrapper: Texts around a string that contains `<`, `&` or a line break, such as CDATA.
        reserved: Texts that occur only in calls, if they differ from the markers.
        frame: Texts that the template writes before and after the text of a turn.
        escaped: Whether `&` and `"` are escaped in names and keys, because they are attributes.
        whole_markers: Whether a value cannot contain a marker, because all markers are tokens of the model.
        nulls: Texts that are parsed as null if null is among the declared types.
    """

    call: str
    parameter: str
    begin: str = ""
    end: str = ""
    between: str = "\n"
    types: str = "names"
    addressed: str = ""
    stops: tuple[str, ...] = ()
    prefix: str = ""
    wrapper: tuple[str, str] | None = None
    reserved: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ("null",)
    frame: tuple[str, ...] = ()
    escaped: bool = False
    whole_markers: bool = False

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """Texts that mark the start, the parts and the end of tool calls in this format, such as `<tool_call>`."""
        return split_markers(self.begin, self.end, self.prefix, self.call, self.parameter)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        written = (
            self.parameter.replace("{key}", "<parameter>").replace("{value}", "<value>").replace("{type}", "<type>")
        )
        return render_tool_prompt(tools, self._around([self._filled("<function name>", written, 1)]))

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls.

        Raises:
            ValueError: If the format cannot express a call: it would be parsed as a different call.
        """
        if not message.tool_calls:
            return message.text
        known = {tool.name: tool for tool in tools}
        calls = []
        for index, call in enumerate(message.tool_calls, start=1):
            tool = known.get(call.name)
            body = "".join(self._write_parameter(key, value, tool) for key, value in parse_call_arguments(call).items())
            calls.append(self._filled(call.name, body, index))
            if not has_same_calls(self.read(calls[-1], tools).tool_calls, [call]):
                raise ValueError(f"{call.name}: {call.arguments[:60]} is a call this format cannot express")
        return message.text + self._around(calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse every call, and the text around them."""
        known = {tool.name: tool.parameters for tool in tools}

        is_open = False

        def read_call(match: re.Match[str]) -> tuple[list[Found], int]:
            nonlocal is_open
            is_open |= match.groupdict().get("begin") is not None
            blocks, end = self._read_call(match, known)
            is_open &= not (self.end and text.endswith(self.end.strip(), 0, end))
            return blocks, end

        message = scan_turn(text, self._opening, read_call, self.reserved or self.markers)
        if is_open and not message.malformed:
            reason = f"{self.begin.strip()} is not closed with {self.end.strip()}"
            message = replace(message, malformed=(reason,))
        if self.frame:
            content = message.text.strip().removeprefix(self.frame[0])
            for sign in reversed(self.frame[1:]):
                content = content.removesuffix(sign).rstrip()
            message = with_text(message, content)
        return message

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        pieces = [rf"(?:{self.addressed}\s*)?"] if self.addressed else []
        pieces += [rf"(?:(?P<begin>{pattern_of(self.begin)})\s*)?"] if self.begin else []
        pieces += [rf"(?:{self.addressed}\s*)?"] if self.addressed and self.begin else []
        return re.compile("".join(pieces) + _pattern_of(self.call.partition("{parameters}")[0]).removeprefix(r"\s*+"))

    @cached_property
    def _parameter(self) -> re.Pattern[str]:
        following = _pattern_of(self.parameter.partition("{key}")[0])
        closing = _pattern_of(self.call.partition("{parameters}")[2])
        pattern = _pattern_of(self.parameter)
        if self.whole_markers:
            markers = "|".join(map(re.escape, self.markers))
            pattern = pattern.replace(_GROUPS["{value}"], rf"(?P<value>(?:(?!{markers}).)*)")
        return re.compile(rf"{pattern}(?={following}|{closing})", re.DOTALL)

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        end = rf"(?:\s*{pattern_of(self.end)})?" if self.end else ""
        return re.compile(_pattern_of(self.call.partition("{parameters}")[2]) + end)

    @cached_property
    def _parameter_opening(self) -> re.Pattern[str]:
        return re.compile(_pattern_of(self.parameter.partition("{value}")[0]).removeprefix(r"\s*+"))

    def _find_unclosed(self, name: str, texts: Mapping[str, str], root: Mapping[str, Any]) -> str:
        """Return an error if a value contains the opening tag of a declared parameter that the call lacks.

        Else empty.
        """
        properties = root.get("properties")
        declared = properties if isinstance(properties, Mapping) else {}
        for key, text in texts.items():
            for match in self._parameter_opening.finditer(text):
                if (other := self._unescape(match["key"].strip())) in declared and other not in texts:
                    return f'the parameter "{key}" of {name} is not closed before the parameter "{other}"'
        return ""

    def _find_call(self, parameter: re.Match[str], known: Mapping[str, Mapping[str, Any]]) -> int | None:
        """Return the position of a call of a known tool within the value of a parameter.

        The result is None if there is none.

        Only a call with a declared parameter counts.
        """
        for match in self._opening.finditer(parameter.string, *parameter.span("value")):
            properties = known.get(self._unescape(match["name"]), {}).get("properties")
            first = self._parameter_opening.match(parameter.string, match.end())
            if first is None or not isinstance(properties, Mapping):
                continue
            if self._unescape(first["key"].strip()) in properties:
                return match.start()
        return None

    @cached_property
    def _last_marker(self) -> str:
        return self.call.partition("{parameters}")[2].split()[-1]

    def _read_call(self, match: re.Match[str], known: Mapping[str, Mapping[str, Any]]) -> tuple[list[Found], int]:
        """Parse the call that starts at a match.

        Returns:
            ([the call, or the reason why it is malformed], position at which scanning continues).
        """
        text, name, position = match.string, self._unescape(match["name"]), match.end()
        root = known.get(name, {})
        arguments: dict[str, Any] = {}
        texts: dict[str, str] = {}
        reason = "" if name else "a call must name its tool"
        if not reason and text.find(split_markers(self.call)[-1], position) < 0:  # a search for the value is slower
            reason = f"a call of {name} is not closed with {self._last_marker}"
        while not reason and (one := self._parameter.match(text, position)) is not None:
            key = self._unescape(one["key"].strip())
            if (other := self._find_call(one, known)) is not None:
                reason, position = f'the parameter "{key}" of {name} is not closed before the next call', other
                break
            position = one.end()
            if key in arguments:
                reason = f'a call of {name} repeats the parameter "{key}"'
                break
            texts[key] = one["value"]
            try:
                arguments[key] = self._parse(key, one["value"], one.groupdict().get("type"), root)
            except ValueError as error:
                reason = f'the parameter "{key}" of {name}: {error}'
        closed = self._closing.match(text, position)
        reason = reason or self._find_unclosed(name, texts, root)
        if not reason and closed is not None:
            return [ToolCall(name, dump_json(arguments))], closed.end()
        reason = reason or f"a call of {name} must contain parameters and be closed with {self._last_marker}"
        return [reason], skip_block(text, position, (self._last_marker,), self._opening)

    def _parse(self, key: str, text: str, kind: str | None, root: Mapping[str, Any]) -> Any:
        """Parse the text of a parameter's value.

        Args:
            key: Name of the parameter.
            text: Text between the tags.
            kind: Type that the call itself states: name of a JSON type, or `true` for a string; None if it states none.
            root: JSON Schema of the tool's arguments.

        Raises:
            ValueError: If the text is not a value of the type, or a wrapper is not closed.
        """
        if self.wrapper is not None and text.startswith(self.wrapper[0]):
            if not text.endswith(self.wrapper[1]):
                raise ValueError(f"{self.wrapper[0]} is not closed with {self.wrapper[1]}")
            text = text[len(self.wrapper[0]) : -len(self.wrapper[1])]
        schema = member_schema(root, key, root)
        if kind is None and text.strip() in self.nulls and "null" in (declared_types(schema, root) or ()):
            return None
        if kind is None:
            return parse_value(text, schema, root)
        return text if kind in ("string", "true") else parse_strict_json(text)

    def _write_parameter(self, key: str, value: Any, tool: ToolSpec | None) -> str:
        text = format_value(value)
        root = tool.parameters if tool is not None else {}
        schema = member_schema(root, key, root)
        stated = "{type}" in self.parameter
        if isinstance(value, str) and not stated and declared_types(schema, root) is None:
            try:
                if parse_value(text, schema, root) != value:
                    text = dump_json(value)  # a string that reads as JSON, and no schema that declares a type
            except ValueError:
                text = dump_json(value)
        if self.wrapper is not None and isinstance(value, str) and _NEEDS_CDATA.search(text):
            text = text.join(self.wrapper)
        kind = next((name for kind, name in _TYPES if isinstance(value, kind)), "null")
        kind = kind if self.types == "names" else dump_json(kind == "string")
        before, _, after = self.parameter.partition("{value}")
        return before.replace("{key}", self._escape(key)).replace("{type}", kind) + text + after

    def _filled(self, name: str, parameters: str, index: int) -> str:
        before, _, after = self.call.partition("{parameters}")
        before = (self.prefix + before).replace("{name}", self._escape(name)).replace("{index}", str(index))
        return before + parameters + after

    def _escape(self, text: str) -> str:
        return text.replace("&", "&amp;").replace('"', "&quot;") if self.escaped else text

    def _unescape(self, text: str) -> str:
        return html.unescape(text) if self.escaped else text

    def _around(self, calls: Sequence[str]) -> str:
        return self.begin + self.between.join(calls) + self.end


def _pattern_of(form: str) -> str:
    """Return a regular expression for a form with placeholders.

    Whitespace between tags is optional, and a value loses one line break at each end.
    """
    pieces = re.split(r"(\{\w+\})", form)
    pattern = ""
    for index, piece in enumerate(pieces):
        if piece in _GROUPS:
            pattern += _GROUPS[piece]
            continue
        after_value = index and pieces[index - 1] == "{value}"
        before_value = index + 1 < len(pieces) and pieces[index + 1] == "{value}"
        first = r"\n?" if after_value and piece.startswith("\n") else "" if after_value else r"\s*+"
        last = r"\n?" if before_value and piece.endswith("\n") else "" if before_value else r"\s*+"
        pattern += first + pattern_of(piece) + last
    return pattern
