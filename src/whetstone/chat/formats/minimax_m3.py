"""How do MiniMax-M3 models call tools? In tags named after parameters, and inside objects after keys, each with a sign.

    ]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[</invoke>

Easy to get wrong: texts, numbers and nothing look the same between tags, so the tool's schema says which is meant; and
an empty object looks as an empty text does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat.formats.json_call import arguments_of, message_of
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec

_SIGN = "]<]minimax[>["
_TAG = re.compile(re.escape(_SIGN) + r"<(/?)([^<>]*)>")
_INVOKE = re.compile(r'invoke name="([^"<>]+)"')
_BEGIN, _END = f"{_SIGN}<tool_call>", f"{_SIGN}</tool_call>"


class MiniMaxM3:
    """Tags behind `]<]minimax[>[`."""

    markers = (_SIGN,)
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        call = f'{_SIGN}<invoke name="name">{_SIGN}<key>value{_SIGN}</key>{_SIGN}</invoke>'
        return told(tools, f"{_BEGIN}\n{call}\n{_END}")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls.

        Raises:
            ValueError: A call could not be read back.
        """
        if not message.tool_calls:
            return message.text
        calls, given = "", []
        for call in message.tool_calls:
            arguments = arguments_of(call)
            if not isinstance(arguments, dict):
                raise ValueError(f"{call.name}: arguments must be a JSON object, got {call.arguments[:60]}")
            calls += f'{_SIGN}<invoke name="{call.name}">{_written(arguments)}{_SIGN}</invoke>\n'
            given.append((call.name, arguments))
        written = f"{message.text}{_BEGIN}\n{calls}{_END}"
        if [(one.name, json.loads(one.arguments)) for one in self.read(written, tools).tool_calls] != given:
            raise ValueError(f"{given[0][0]}: a call this format cannot express")
        return written

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Every call in order; what stands before the first is what the model says."""
        known = {tool.name: tool.parameters for tool in tools}
        said, there, behind = text.partition(_BEGIN)
        if not there:
            return message_of(text, [])
        found: list[ToolCall | str] = []
        place = 0
        while (tag := _TAG.search(behind, place)) is not None and tag[2] != "tool_call":
            invoked = _INVOKE.fullmatch(tag[2])
            if tag[1] or invoked is None:
                found.append(f"a call begins with {_SIGN}<invoke name=…>")
                break
            try:
                value, place = _read(behind, tag.end(), "invoke", known.get(invoked[1], {"type": "object"}), 0)
            except ValueError as error:
                found.append(f"a call of {invoked[1]}: {error}")
                break
            found.append(ToolCall(invoked[1], json.dumps(value if isinstance(value, dict) else {})))
        return message_of(said, found or [f"{_BEGIN} and no call"])

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"{_SIGN}<{key}>{_written(inner)}{_SIGN}</{key}>" for key, inner in value.items())
    if isinstance(value, list):
        return "".join(f"{_SIGN}<item>{_written(inner)}{_SIGN}</item>" for inner in value)
    return value if isinstance(value, str) else json.dumps(value)


def _read(text: str, place: int, name: str, schema: Any, depth: int) -> tuple[Any, int]:
    """(what stands between the tag that ended here and the one that closes it, where that ends)"""
    schema = schema if isinstance(schema, Mapping) else {}
    if depth > 50:
        raise ValueError("its arguments are too deep to be read")
    inner: list[tuple[str, Any]] = []
    begins = place
    while True:
        tag = _TAG.search(text, place)
        if tag is None:
            raise ValueError(f"a <{name}> was not closed")
        if tag[1]:
            if tag[2] != name:
                raise ValueError(f"a <{name}> was closed as {tag[2][:30]!r}")
            break
        properties = schema.get("properties")
        within = properties.get(tag[2], {}) if isinstance(properties, Mapping) else schema.get("items", {})
        value, place = _read(text, tag.end(), tag[2], within, depth + 1)
        inner.append((tag[2], value))
    if inner and schema.get("type") != "object" and all(key == "item" for key, _ in inner):
        return [value for _, value in inner], tag.end()
    if inner:
        return dict(inner), tag.end()
    return _leaf(text[begins : tag.start()], schema, is_call=depth == 0), tag.end()


def _leaf(text: str, schema: Mapping[str, Any], *, is_call: bool) -> Any:
    if is_call:
        return {}
    if schema.get("type") == "string":
        return text
    if not text and schema.get("type") in ("object", "array"):
        return {} if schema["type"] == "object" else []
    if not text:
        return None if schema else ""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
