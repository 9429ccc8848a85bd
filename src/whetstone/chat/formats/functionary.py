"""Tool calls of Functionary 3 models: each part of a turn starts with its recipient, `>>>name`.

Note:
    The generation prompt ends with the first `>>>`, so a turn starts with a name. The recipient `all` is the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import (
    build_message,
    decode_json,
    dump_without_markers,
    parse_call_arguments,
    require_same_calls,
)
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec

_SIGN = ">>>"
_TO = re.compile(r">>>([^\s>]+)\n")


class Functionary:
    """Tool-call format of Functionary 3.2: `>>>name` and a line of JSON for a call, `>>>all` for text."""

    markers = (_SIGN,)
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        return render_tool_prompt(tools, f"{_SIGN}<function name>\n<object of arguments>")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls.

        Raises:
            ValueError: If the format cannot express a call, such as a call of a tool named `all`.
        """
        if not message.tool_calls:
            return message.text
        content = f"{_SIGN}all\n{message.text}" if message.text else ""
        calls = "".join(
            f"{_SIGN}{call.name}\n{dump_without_markers(parse_call_arguments(call), self.markers)}"
            for call in message.tool_calls
        )
        require_same_calls(self.read(calls, tools), message)
        return content + calls

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the parts of a turn: parts to `all` are text, and all other parts are calls."""
        parts = _TO.split(text if text.startswith(_SIGN) else _SIGN + text)
        if len(parts) == 1 and text.removeprefix(_SIGN).strip() in {tool.name for tool in tools}:
            return build_message("", [f"a call of {text.removeprefix(_SIGN).strip()} has no arguments"])
        content, *cut = parts[0].removeprefix(_SIGN).split(_SIGN, 1)
        blocks: list[ToolCall | str] = []
        if text.startswith(_SIGN) and content.startswith("\n") and content.lstrip().startswith("{"):
            cut, content = [content, *cut], ""
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name == "all":
                body, *rest = body.split(_SIGN, 1)
                content, cut = content + body, [*cut, *rest]
                continue
            try:
                value, end = decode_json(body)
                rest = body[end:].strip()
                if not isinstance(value, dict):
                    raise ValueError(f"got {body.strip()[:40]!r}")
                if rest and not rest.startswith(_SIGN):
                    raise ValueError(f"text follows the JSON value: {rest[:40]!r}")
            except ValueError as error:
                blocks.append(f"the arguments of {name} must be a JSON object: {error}")
            else:
                blocks.append(ToolCall(name, body[:end].strip()))
                cut += [rest.removeprefix(_SIGN)] if rest else []
        return build_message(
            content, [*blocks, *(f"{_SIGN}{one[:40]} is not a name and a line of arguments" for one in cut)]
        )

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)
