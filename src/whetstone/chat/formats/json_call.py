"""Strict parsing of JSON in model output, and of tool calls that are written as JSON objects.

Strict means that a repeated key, `NaN`, `Infinity` and a number without a finite value are errors. Python's `json`
accepts all of them and keeps the last value of a repeated key.

Note:
    `ToolCall.arguments` is the text of the model, cut out of the turn and not serialized again: long decimals, escapes
    and the order of keys stay as they were sampled.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from whetstone.chat.message import Message, Text, ToolCall, ToolSpec

_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]*")
_ARGUMENT_KEYS = ("arguments", "parameters")
_TOO_DEEP = "it is nested too deeply"
_MAX_DEPTH = 500
"""Maximum nesting of objects and lists; the limit of Python's `json` differs between versions."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.S)


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f'the key "{first_repeated([key for key, _ in pairs])}" is repeated')
    return value


def first_repeated(keys: Sequence[str]) -> str:
    """Return the first key that occurs more than once; empty if there is none."""
    counts = Counter(keys)
    return next((key for key in keys if counts[key] > 1), "")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} has no finite value")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=_build_object, parse_float=_parse_float, parse_constant=_refuse_constant)
_PLAIN = json.JSONDecoder()


def skip_space(text: str, position: int) -> int:
    """Return the first position at or after `position` that is not JSON whitespace."""
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _check_depth(text: str, start: int, end: int) -> None:
    """Raise `ValueError` if the JSON value between two positions is nested more than 500 levels deep."""
    if text.count("[", start, end) + text.count("{", start, end) <= _MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(text, start, end):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > _MAX_DEPTH:
            raise ValueError(_TOO_DEEP)


def decode_json(text: str, position: int = 0) -> tuple[Any, int]:
    """Decode the strict JSON value that starts at a position, after whitespace.

    Returns:
        (value, position after the value).

    Raises:
        ValueError: If there is no strict JSON value.
    """
    start = skip_space(text, position)
    try:
        value, end = _STRICT.raw_decode(text, start)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(text, start, end)
    return value, end


def parse_strict_json(text: str) -> Any:
    """Parse a text that is exactly one strict JSON value.

    Raises:
        ValueError: If the text is not strict JSON, or anything follows the value.
    """
    value, end = decode_json(text)
    if skip_space(text, end) < len(text):
        raise ValueError(f"text follows the JSON value: {text[end : end + 40].strip()!r}")
    return value


def dump_json(value: Any) -> str:
    """Return a value as JSON with non-ASCII characters unescaped.

    Only unpaired surrogates are escaped.

    Raises:
        ValueError: If the value contains a number that is not finite, or is nested too deeply.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def decode_calls(
    text: str, position: int, *, name: str = "name", arguments: str = "arguments"
) -> tuple[list[ToolCall | str], int]:
    """Decode one call, or a list of calls, that starts at a position.

    Args:
        text: Text of the turn.
        position: Position at which the JSON starts, after whitespace.
        name: Key of the tool's name; empty if a call is an object whose only key is the name.
        arguments: Key of the arguments; `arguments` and `parameters` are always accepted.

    Returns:
        (one call, or the reason why it is malformed, per object; position after the JSON).

    Raises:
        ValueError: If there is no JSON value at the position.
    """
    start = skip_space(text, position)
    try:
        value, end = _PLAIN.raw_decode(text, start)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(text, start, end)
    spans = list(_element_spans(text, start)) if isinstance(value, list) else [(start, end)]
    blocks: list[ToolCall | str] = []
    for first, last in spans:  # a call that is not strict JSON does not affect its neighbors
        try:
            blocks.append(_read_call(parse_strict_json(text[first:last]), text, first, name, arguments))
        except ValueError as error:
            blocks.append(f"a call must be strict JSON: {error}")
    return blocks, end


def _read_call(value: Any, text: str, start: int, name: str, arguments: str) -> ToolCall | str:
    """Convert a decoded object into a call; return the reason if the object is not a call.

    Args:
        value: Decoded object.
        text: Text of the turn.
        start: Position of the object in `text`.
        name: Key of the tool's name; empty if the only key is the name.
        arguments: Key of the arguments.
    """
    if not isinstance(value, dict):
        return f"a call must be an object, got {text[start : start + 40]!r}"
    if not name:
        if len(value) != 1:
            return "a call must be an object of one name and its arguments"
        ((called, raw_arguments),) = value.items()
        key = called
    else:
        keys = [key for key in dict.fromkeys((arguments, *_ARGUMENT_KEYS)) if key in value]
        if not keys or not isinstance(value.get(name), str):
            return f'a call must be an object with "{name}" and "{arguments}"'
        key, called = keys[0], value[name]
        raw_arguments = value[key]
    if not called.strip():
        return "a call must name its tool"
    call_id = next((value[key] for key in ("id", "tool_call_id") if name and isinstance(value.get(key), str)), "")
    if isinstance(raw_arguments, str):  # some models write the arguments as a string that contains JSON
        try:
            raw_arguments = parse_strict_json(body := raw_arguments)
        except ValueError as error:
            return f"the arguments of {called} must be a JSON object: {error}"
    else:
        first, last = next(span for member, span in _member_spans(text, start) if member == key)
        body = text[first:last]
    if not isinstance(raw_arguments, dict):
        return f"the arguments of {called} must be a JSON object, got {body[:40]}"
    return ToolCall(called, body, call_id)


def _member_spans(text: str, start: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each key and the (start, end) of its value for the valid JSON object at `start`."""
    position = skip_space(text, start + 1)
    while text[position] != "}":
        key, position = _PLAIN.raw_decode(text, position)
        position = skip_space(text, skip_space(text, position) + 1)
        _, end = _PLAIN.raw_decode(text, position)
        yield key, (position, end)
        position = skip_space(text, end)
        if text[position] == ",":
            position = skip_space(text, position + 1)


def _element_spans(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of each element of the valid JSON list at `start`."""
    position = skip_space(text, start + 1)
    while text[position] != "]":
        _, end = _PLAIN.raw_decode(text, position)
        yield position, end
        position = skip_space(text, end)
        if text[position] == ",":
            position = skip_space(text, position + 1)


def parse_call_arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as a dictionary.

    Raises:
        ValueError: If the arguments are not a strict JSON object.
    """
    try:
        value = parse_strict_json(call.arguments)
    except ValueError as error:
        raise ValueError(f"{call.name}: its arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{call.name}: arguments must be a JSON object, got {call.arguments[:60]}")
    return value


def write_call(call: ToolCall, *, arguments: str, signs: Sequence[str] = ()) -> str:
    """Return a call as the text of a JSON object with `name` and its arguments.

    Args:
        call: Call to write.
        arguments: Key of the arguments.
        signs: Markers of the format; the first character of a marker within a string is escaped.

    Raises:
        ValueError: If the arguments are not a JSON object.
    """
    return dump_without_markers({"name": call.name, arguments: parse_call_arguments(call)}, signs)


def dump_without_markers(value: Any, signs: Sequence[str]) -> str:
    """Return a value as JSON in which no marker occurs, even if a string contains one.

    The first character of each marker is written as a Unicode escape.
    """
    body = dump_json(value)
    for sign in signs:
        body = body.replace(sign, f"\\u{ord(sign[0]):04x}{sign[1:]}")
    return body


def write_schemas(tools: Sequence[ToolSpec]) -> str:
    """Return the declarations of tools in the OpenAI format, one JSON object per line."""
    return "\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools)


def build_message(text: str, blocks: Sequence[ToolCall | str]) -> Message:
    """Create an assistant message from its text, its calls, and the reasons of malformed calls."""
    calls = tuple(call for call in blocks if isinstance(call, ToolCall))
    malformed = tuple(wrong for wrong in blocks if isinstance(wrong, str))
    return Message("assistant", (Text(text),) if text else (), calls, malformed=malformed)


def require_same_calls(back: Message, message: Message) -> None:
    """Check that written calls are parsed back into the same calls.

    Args:
        back: Message parsed from the written text.
        message: Message that was written.

    Raises:
        ValueError: If a call differs, so that the format cannot express it.
    """
    if not has_same_calls(back.tool_calls, message.tool_calls):
        call = message.tool_calls[0]
        raise ValueError(f"{call.name}: {call.arguments[:60]} is a call this format cannot express")


def has_same_calls(calls: Sequence[ToolCall], others: Sequence[ToolCall]) -> bool:
    """Return whether two lists of calls have equal names and arguments, including the types of numbers."""
    try:
        pairs, other_pairs = (
            [(call.name, dump_json(parse_call_arguments(call))) for call in each] for each in (calls, others)
        )
    except ValueError:
        return False
    return pairs == other_pairs
