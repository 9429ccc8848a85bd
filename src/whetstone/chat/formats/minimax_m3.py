"""Tool calls of MiniMax-M3: tags named after parameters, and within objects after keys, each after a marker.

    ]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[</invoke>

Note:
    Strings, numbers and null look the same between tags, and an empty object looks like an empty string. The schema of
    the tool decides at every level (`properties`, `additionalProperties`, `items`); see `text_values`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat.formats.json_call import dump_json, first_repeated, parse_call_arguments, require_same_calls
from whetstone.chat.formats.scanning import Found, scan_turn, skip_block
from whetstone.chat.formats.text_values import declared_types, format_value, member_schema, parse_value
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec

_SIGN = "]<]minimax[>["
_TAG = re.compile(re.escape(_SIGN) + r"<(/?)([^<>]*)>")
_INVOKE = re.compile(r'invoke name="([^"<>]+)"')
_BEGIN, _END = f"{_SIGN}<tool_call>", f"{_SIGN}</tool_call>"
_OPENING = re.compile(re.escape(_BEGIN))
_NEXT = re.compile(rf'{re.escape(_SIGN)}(?:<invoke name="|</?tool_call>)')
_MAX_DEPTH = 50


class MiniMaxM3:
    """Tool-call format of MiniMax-M3, whose tags follow the marker `]<]minimax[>[`."""

    markers = (_SIGN,)
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        call = f'{_SIGN}<invoke name="name">{_SIGN}<key>value{_SIGN}</key>{_SIGN}</invoke>'
        return render_tool_prompt(tools, f"{_BEGIN}\n{call}\n{_END}")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by one block with its calls.

        Raises:
            ValueError: If the format cannot express a call: it would be parsed as a different call.
        """
        if not message.tool_calls:
            return message.text
        calls = "".join(
            f'{_SIGN}<invoke name="{call.name}">{_write_value(parse_call_arguments(call))}{_SIGN}</invoke>\n'
            for call in message.tool_calls
        )
        written = f"{message.text}{_BEGIN}\n{calls}{_END}"
        require_same_calls(self.read(written, tools), message)
        return written

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the calls of all blocks, and the text around them."""
        known = {tool.name: tool.parameters for tool in tools}

        def read_block(match: re.Match[str]) -> tuple[list[Found], int]:
            return _read_block(text, match.end(), known)

        return scan_turn(text, _OPENING, read_block, self.markers)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)


def _read_block(text: str, position: int, known: Mapping[str, Mapping[str, Any]]) -> tuple[list[Found], int]:
    blocks: list[Found] = []
    while True:
        tag = _TAG.search(text, position)
        if tag is None or (tag[1], tag[2]) == ("", "tool_call"):
            end = len(text) if tag is None else tag.start()
            return [*blocks, f"{_BEGIN} is not closed with {_END}"], end
        if tag[1] and tag[2] == "tool_call":
            return blocks or [f"{_BEGIN} contains no call"], tag.end()
        invoked = _INVOKE.fullmatch(tag[2])
        try:
            if tag[1] or invoked is None:
                raise ValueError(f"a call must start with {_SIGN}<invoke name=…>, got <{tag[1]}{tag[2][:30]}>")
            root = known.get(invoked[1], {})
            value, position = _read_value(text, tag.end(), "invoke", root, root, 0)
            blocks.append(ToolCall(invoked[1], dump_json(value if isinstance(value, dict) else {})))
        except ValueError as error:
            blocks.append(f"a call of {invoked[1]}: {error}" if invoked is not None else str(error))
            position = skip_block(text, tag.end(), (), _NEXT)


def _write_value(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"{_SIGN}<{key}>{_write_value(inner)}{_SIGN}</{key}>" for key, inner in value.items())
    if isinstance(value, list):
        return "".join(f"{_SIGN}<item>{_write_value(inner)}{_SIGN}</item>" for inner in value)
    return format_value(value)


def _read_value(
    text: str, position: int, name: str, schema: Any, root: Mapping[str, Any], depth: int
) -> tuple[Any, int]:
    """Parse the value between an opening tag and its closing tag.

    Args:
        text: Text of the turn.
        position: End of the opening tag.
        name: Name of the opening tag.
        schema: JSON Schema of the value.
        root: Schema that contains the definitions to which `$ref` points.
        depth: Nesting depth of the value; 0 for the arguments themselves.

    Returns:
        (value, position after the closing tag).

    Raises:
        ValueError: If a tag is not closed, a key is repeated, or the nesting is too deep.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("its arguments are nested too deeply")
    inner: list[tuple[str, Any]] = []
    start = position
    while True:
        tag = _TAG.search(text, position)
        if tag is None:
            raise ValueError(f"a <{name}> is not closed")
        if tag[1]:
            if tag[2] != name:
                raise ValueError(f"a <{name}> is closed as {tag[2][:30]!r}")
            break
        value, position = _read_value(
            text, tag.end(), tag[2], member_schema(schema, tag[2], root, len(inner)), root, depth + 1
        )
        inner.append((tag[2], value))
    types = declared_types(schema, root)
    keys = [key for key, _ in inner]
    if inner and all(key == "item" for key in keys) and (types is None or "object" not in types):
        return [value for _, value in inner], tag.end()
    if inner:
        if len(set(keys)) < len(keys):
            raise ValueError(f"a <{name}> repeats {first_repeated(keys)}")
        return dict(inner), tag.end()
    if depth == 0:
        return {}, tag.end()
    body = text[start : tag.start()]
    if not body and types is not None and "string" not in types:
        empty: Any = {} if "object" in types else [] if "array" in types else None
        return empty, tag.end()
    return parse_value(body, schema, root), tag.end()
