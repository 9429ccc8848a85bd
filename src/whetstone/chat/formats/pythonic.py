"""Tool-call formats that write calls in Python's syntax, such as `[weather(city="Oslo", days=2)]`.

    <|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>        LFM2
    <function_calls>weather(city="Oslo")</function_calls>        OLMo 3, one call per line
    [weather(city="Oslo")]        Llama 4, the whole turn

`families` has the options of each model family.

Note:
    The calls are parsed with Python's grammar and never evaluated. Arguments must be named, and must be values of JSON:
    a tuple is a list, a set and bytes are errors.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from whetstone.chat.formats.json_call import build_message, dump_json, parse_call_arguments, require_same_calls
from whetstone.chat.formats.scanning import Found, scan_turn
from whetstone.chat.formats.text_values import parse_python
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec
from whetstone.python_syntax import parse_expression, parse_syntax


@dataclass(frozen=True)
class Pythonic:
    """Tool-call format in Python's syntax, configured by its markers and layout.

    Args:
        begin: Text before the calls; empty if the calls are the whole turn.
        end: Text after the calls.
        layout: Whether several calls are written as one list or as one call per line. Both are parsed.
        optional: Markers before and after calls that are the whole turn; a model may omit them.
        is_raw: Whether strings are written between single quotes without escapes, as the template of LFM2.5 does. A
            string then ends at a quote that the next argument or the end of the call follows.
    """

    begin: str = "<|tool_call_start|>"
    end: str = "<|tool_call_end|>"
    layout: Literal["list", "lines"] = "list"
    stops: tuple[str, ...] = ()
    optional: tuple[str, str] = ("", "")
    is_raw: bool = False

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """Texts that open and close calls."""
        return tuple(sign for sign in (self.begin, self.end, *self.optional) if sign)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        return render_tool_prompt(tools, self._around(['name(key="text", other=2)']))

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls.

        Raises:
            ValueError: If the format cannot express a call: a name is not one of Python, a string contains the end of
                the calls, or the message has text and calls must be the whole turn.
        """
        if not message.tool_calls:
            return message.text
        if message.text and not self.begin:
            raise ValueError("a turn in this format contains either text or calls")
        calls = []
        for call in message.tool_calls:
            pairs = ", ".join(f"{key}={self._write_value(value)}" for key, value in parse_call_arguments(call).items())
            calls.append(f"{call.name}({pairs})")
        written = message.text + self._around(calls)
        require_same_calls(self.read(written, tools), message)
        return written

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the calls, and the text around them."""
        if self.begin:
            return scan_turn(text, self._opening, self._read_block, self.markers)
        first, last = self.optional
        body = text.strip()
        marked = bool(first) and body.startswith(first)
        body = body.removeprefix(first).removesuffix(last).strip() if first else body
        if not marked and re.match(r"\[\s*[A-Za-z_][\w.]*\s*\(", body) is None:
            names = "|".join([*(re.escape(tool.name) + r"\s*\(" for tool in tools), r"[A-Za-z_][\w.]*\(\w+\s*="])
            return scan_turn(text, re.compile(rf"\[\s*(?:{names})"), _read_list, self.markers)
        blocks = parse_calls(body)
        return build_message("", blocks)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.begin))

    @cached_property
    def _inner_opening(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.begin) + rf"\s*\[?\s*{_WORD}\(")

    def _read_block(self, match: re.Match[str]) -> tuple[list[Found], int]:
        """Parse the calls up to the first closing marker before which the text is valid Python.

        A string may contain the closing marker.
        """
        text, start = match.string, match.end()
        end, blocks = start, list[Found]()
        for _ in range(8):
            end = text.find(self.end, end)
            if end < 0:
                break
            inner = self._inner_opening.search(text, start, end) if self.is_raw else None
            if inner is not None:  # a string without escapes ends nowhere else
                return [f"{self.begin} is not closed with {self.end} before the next call"], inner.start()
            calls = self._parse(text[start:end])
            end += len(self.end)
            if not blocks or not isinstance(calls[0], str):
                blocks, place = calls, end
            if not isinstance(calls[0], str) or len(calls) > 1:
                return calls, end
            following = text.find(self.begin, start)
            if 0 <= following < end:
                break
        if not blocks:
            following = text.find(self.begin, start)
            return [f"{self.begin} is not closed with {self.end}"], len(text) if following < 0 else following
        return blocks, place

    @cached_property
    def jinja_calls(self) -> str:
        """Body of the Jinja macro that writes text and calls of a turn in exported templates."""
        begin, between, end = map(json.dumps, self._around(["", ""]).partition(", " if self.layout == "list" else "\n"))
        value = (
            "(\"'\" ~ value ~ \"'\" if value is string else '%r' | format(value))"
            if self.is_raw
            else "'%r' | format(value)"
        )
        return (
            f"{{{{- content ~ {begin} }}}}{{%- for call in calls %}}{{{{- '' if loop.first else {between} }}}}"
            "{{- call.function.name ~ '(' }}{%- for key, value in call.function.arguments.items() %}"
            f"{{{{- '' if loop.first else ', ' }}}}{{{{- key ~ '=' ~ {value} }}}}"
            f"{{%- endfor %}}{{{{- ')' }}}}{{%- endfor %}}{{{{- {end} }}}}"
        )

    def _write_value(self, value: Any) -> str:
        return f"'{value}'" if self.is_raw and isinstance(value, str) else repr(value)

    def _parse(self, text: str) -> list[Found]:
        return parse_raw_calls(text) if self.is_raw else parse_calls(text)

    def _around(self, calls: Sequence[str]) -> str:
        body = f"[{', '.join(calls)}]" if self.layout == "list" else "\n".join(calls)
        return self.begin + body + self.end


def _read_list(match: re.Match[str]) -> tuple[list[Found], int]:
    """Parse a list of calls within text, up to the first bracket at which the list is valid Python."""
    text, end = match.string, match.end()
    for _ in range(16):
        end = text.find("]", end) + 1
        if not end:
            break
        calls = parse_calls(text[match.start() : end])
        if not isinstance(calls[0], str) or len(calls) > 1:
            return calls, end
    return [f"calls must be in Python's syntax: {text[match.start() : match.start() + 60]!r}"], len(text)


_WORD = r"[\w$][\w$.:/-]*+"
"""Pattern of a tool's name or an argument's key: templates write any name, such as `get-weather` or `from`."""
_WORDS = re.compile(
    r"""\'{3}(?:\\.|(?!\'{3})[^\\])*\'{3}|"{3}(?:\\.|(?!"{3})[^\\])*"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|"""
    rf"""(?<![\w$.:/-])(?P<word>{_WORD})(?=\s*(?:\(|(?P<key>=(?!=))))""",
    re.DOTALL,
)


def _is_python_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word) and unicodedata.is_normalized("NFKC", word)


def _parse_module(text: str) -> list[ast.stmt]:
    """Parse Python code in which names of tools and keys of arguments may be invalid Python names."""
    prefix = "_word"
    while prefix in text:
        prefix += "_"
    words: list[str] = []

    def escape(match: re.Match[str]) -> str:
        word = match["word"]
        if word is None or all(map(_is_python_name, [word] if match["key"] else word.split("."))):
            return match.group()
        words.append(word)
        return f"{prefix}{len(words) - 1}_"

    def restore(name: str) -> str:
        return re.sub(rf"{prefix}(\d+)_", lambda match: words[int(match[1])], name)

    tree = parse_syntax(_WORDS.sub(escape, text))
    assert isinstance(tree, ast.Module)
    body = tree.body
    for node in (each for statement in body if words for each in ast.walk(statement)):
        if isinstance(node, ast.Name):
            node.id = restore(node.id)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            node.arg = restore(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = restore(node.value)
    return body


def parse_calls(text: str) -> list[Found]:
    """Parse one call, a list of calls, or one call per line in Python's syntax.

    Returns:
        Calls in order, and the reason for each call that is malformed.
    """
    try:
        body = _parse_module(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"calls must be in Python's syntax: {error}"]
    nodes: list[ast.expr] = []
    for statement in body:
        if not isinstance(statement, ast.Expr):
            return ["calls must be in Python's syntax: name(key=value)"]
        expression = statement.value
        nodes += expression.elts if isinstance(expression, ast.List | ast.Tuple) else [expression]
    return [_read_call(node) for node in nodes] or ["a list of calls is empty"]


_NEXT = rf"\s*+(?:,\s*+{_WORD}\s*+=|\)\s*+(?:,\s*+{_WORD}\s*+\(|\]?\s*+\Z))"
_RAW_NAME = re.compile(rf"\s*({_WORD})\s*\(\s*")
_RAW_KEY = re.compile(rf"\s*({_WORD})\s*=\s*")
_RAW_STRING = re.compile(rf"(['\"])(.*?)\1(?={_NEXT})", re.DOTALL)
_RAW_OTHER = re.compile(rf"(.*?)(?<!\s)(?={_NEXT})", re.DOTALL)


def parse_raw_calls(text: str) -> list[Found]:
    """Parse a list of calls whose strings are between quotes and have no escapes.

    Returns:
        Calls in order, and the reason for each call that is malformed.
    """
    body = text.strip()
    body = body[1:] if body.startswith("[") else body
    blocks: list[Found] = []
    position = 0
    while (named := _RAW_NAME.match(body, position)) is not None:
        name, position = named[1], named.end()
        arguments: dict[str, Any] = {}
        while (key := _RAW_KEY.match(body, position)) is not None:
            string = _RAW_STRING.match(body, key.end())
            other = string or _RAW_OTHER.match(body, key.end())
            if other is None or key[1] in arguments:
                return [*blocks, f"the argument {key[1]} of {name} is not closed, or repeated"]
            try:
                value = string[2] if string is not None else parse_python(parse_expression(other[1].strip()))
                dump_json(value)
            except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
                return [*blocks, f"the argument {key[1]} of {name} is not a JSON value: {error}"]
            arguments[key[1]] = value
            comma = re.compile(r"\s*,?").match(body, other.end())
            position = other.end() if comma is None else comma.end()
        closed = re.compile(r"\s*\)\s*,?").match(body, position)
        if closed is None:
            return [*blocks, f"a call of {name} must be written {name}(key=value)"]
        blocks.append(ToolCall(name, dump_json(arguments)))
        position = closed.end()
    if not blocks or body[position:].strip() not in ("]", ""):
        blocks.append(f"calls must be written [name(key=value)], got {body[position : position + 60]!r}")
    return blocks


def _read_call(call: ast.expr) -> Found:
    if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
        return "a call must be written name(key=value)"
    names: list[str] = []
    function = call.func
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return "a call must be written name(key=value)"
    name = ".".join([function.id, *reversed(names)])
    arguments: dict[str, Any] = {}
    for one in call.keywords:
        key = str(one.arg)
        if key in arguments:
            return f"a call of {name} repeats the argument {key}"
        try:
            arguments[key] = parse_python(one.value)
            dump_json(arguments[key])
        except (ValueError, TypeError, RecursionError) as error:
            return f"the argument {key} of {name} is not a JSON value: {error}"
    return ToolCall(name, dump_json(arguments))
