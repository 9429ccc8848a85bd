"""Tool calls of models trained to search: a tag with the name of the tool, `<search>who wrote it</search>`.

Only tools with one text parameter can be called; `<code>` calls `python`. Results are in `<information>`.

Note:
    A model may continue after its tag and invent the result. Sampling stops at the end of a tag.

Source: Search-R1 2025, arXiv:2503.09516.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import build_message, dump_json, parse_call_arguments
from whetstone.chat.formats.scanning import Found, scan_turn
from whetstone.chat.message import Message, ToolCall, ToolSpec, user, with_text

_OTHER_NAMES = {"code": "python"}
_STOPS = ("search", "code", "python", "sql", "shell")


class Tags:
    """Tool-call format of search models: `<search>text</search>`, with results as `<information>text</information>`."""

    markers = ("<information>", "</information>", *(f"<{n}>" for n in _STOPS), *(f"</{n}>" for n in _STOPS))
    stops = tuple(f"</{name}>" for name in _STOPS)
    jinja_tools = (
        "{%- set ns = namespace(lines=[]) %}{%- for tool in tools %}{%- set function = tool.function or tool %}"
        "{%- set schemas = ((function.parameters or {}).properties or {}).values() | list %}"
        "{%- if schemas | length == 1 and schemas[0].type == 'string' and schemas[0].enum is not defined %}"
        "{%- set parameter = function.parameters.properties | list | first %}{%- set ns.lines = ns.lines + ['<' ~ "
        "function.name ~ '>' ~ parameter ~ '</' ~ function.name ~ '>: ' ~ (function.description or '')] %}"
        "{%- endif %}{%- endfor %}{%- if ns.lines %}{{- (['You may call tools:'] + ns.lines + "
        "['You are then told <information>…</information>.']) | join('\n') }}{%- endif %}"
    )
    jinja_calls = (
        "{%- if calls | length > 1 %}{{- raise_exception('a turn in this format holds one call') }}{%- endif %}"
        "{{- content }}{%- for call in calls %}{{- '<' ~ call.function.name ~ '>' ~ "
        "(call.function.arguments.values() | list | first) ~ '</' ~ call.function.name ~ '>' }}{%- endfor %}"
    )

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return one line per tool that takes exactly one text.

        Other tools cannot be called in this format.
        """
        lines = [
            f"<{tool.name}>{p}</{tool.name}>: {tool.description}" for tool in tools if (p := tool.only_text_parameter)
        ]
        if not lines:
            return ""
        return "\n".join(["You may call tools:", *lines, "You are then told <information>…</information>."])

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its only call.

        Raises:
            ValueError: If there are several calls, a tool takes anything other than one text, or the call would be
                parsed as a different call.
        """
        if not message.tool_calls:
            return message.text
        if len(message.tool_calls) > 1:
            raise ValueError("a turn in this format holds one call")
        (call,) = message.tool_calls
        values = list(parse_call_arguments(call).values())
        text = values[0].strip() if len(values) == 1 and isinstance(values[0], str) else None
        written = f"{message.text}<{call.name}>{values[0] if values else ''}</{call.name}>"
        back = [(one.name, list(json.loads(one.arguments).values())) for one in self.read(written, tools).tool_calls]
        if text is None or back != [(call.name, [text])]:
            raise ValueError(f"{call.name}: a call in this format is one text without tags, of a tool that takes one")
        return written

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the first tag of a tool after the last thought, and the text around it.

        A second call is malformed.
        """
        names = {tool.name: tool.name for tool in tools if tool.only_text_parameter is not None}
        names |= {other: name for other, name in _OTHER_NAMES.items() if name in names and other not in names}
        if not names:
            return build_message(text, [])
        thought = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
        opening = re.compile("|".join(f"<({re.escape(name)})>" for name in names))
        called = False

        def read_call(match: re.Match[str]) -> tuple[list[Found], int]:
            nonlocal called
            tag = match.group()[1:-1]
            inside_end = match.string.find(closing := f"</{tag}>", match.end())
            if inside_end < 0:
                return [f"a <{tag}> is not closed with </{tag}>"], len(match.string)
            end = inside_end + len(closing)
            if called:
                return [f"a turn contains one call, and <{tag}> is another"], end
            called = True
            parameter = next(tool.only_text_parameter for tool in tools if tool.name == names[tag])
            inside = match.string[match.end() : inside_end].strip()
            return [ToolCall(names[tag], dump_json({str(parameter): inside}))], end

        message = scan_turn(text[thought:], opening, read_call)
        return with_text(message, text[:thought] + message.text)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return each tool result as a separate user message, within `<information>` tags."""
        return [user(f"<information>{m.text}</information>") if m.role == "tool" else m for m in messages]
