"""A call as a JSON object, which several formats wrap in signs of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from whetstone.chat.message import Message, Text, ToolCall, ToolSpec


def read_call(value: Any, *, arguments: Sequence[str]) -> ToolCall | str:
    """The call in a parsed JSON value, or what is wrong with it.

    Args:
        arguments: Keys under which arguments may stand; the first is named where there is none of them.
    """
    key = next((key for key in arguments if isinstance(value, dict) and key in value), None)
    if key is None or not isinstance(value.get("name"), str):
        return f'a call is an object with "name" and "{arguments[0]}"'
    given = value[key]
    # some models write the arguments as a string of JSON; it is the same call
    try:
        call_id = next((value[key] for key in ("id", "tool_call_id") if isinstance(value.get(key), str)), "")
        return ToolCall(value["name"], given if isinstance(given, str) else json.dumps(given), call_id)
    except RecursionError:
        return "the arguments of a call are too deep to be read"


def parsed(text: str) -> tuple[Any, str]:
    """(the JSON value, nothing), or (nothing, what is wrong)"""
    try:
        return json.loads(text), ""
    except (ValueError, RecursionError) as error:
        return None, str(error)


def arguments_of(call: ToolCall) -> Any:
    """The arguments of a call as a value.

    Raises:
        ValueError: They are no JSON.
    """
    try:
        return json.loads(call.arguments)
    except RecursionError:
        raise ValueError(f"{call.name}: its arguments are too deep to be read") from None


def written(call: ToolCall, *, arguments: str, signs: Sequence[str] = ()) -> str:
    """The call as a JSON object.

    Args:
        signs: Of the format around it; where a text in the call holds one, its first letter is written as its number.

    Raises:
        ValueError: Its arguments are no JSON.
    """
    return without_signs({"name": call.name, arguments: arguments_of(call)}, signs)


def without_signs(value: Any, signs: Sequence[str]) -> str:
    """A value as JSON in which none of these stands, though its texts may say them."""
    body = json.dumps(value, ensure_ascii=False)
    for sign in signs:
        body = body.replace(sign, f"\\u{ord(sign[0]):04x}{sign[1:]}")
    return body


def schemas(tools: Sequence[ToolSpec]) -> str:
    """The tools as JSON schemas, one a line."""
    return "\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools)


def message_of(text: str, found: Sequence[ToolCall | str]) -> Message:
    """An assistant message that says this and calls what was found; texts among it are what could not be read."""
    calls = tuple(call for call in found if isinstance(call, ToolCall))
    malformed = tuple(wrong for wrong in found if isinstance(wrong, str))
    return Message("assistant", (Text(text),) if text else (), calls, malformed=malformed)
