"""Tool calls as fenced Python blocks: a block in a turn is executed; a turn without one is the answer.

Note:
    Several blocks in a turn are executed as one piece of code, so that later blocks can use definitions of earlier
    ones. A block without a closing fence was truncated.

Source: CodeAct 2024, arXiv:2402.01030.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import build_message, dump_json, parse_call_arguments
from whetstone.chat.message import Message, ToolCall, ToolSpec, user

_BLOCK = re.compile(r"^```(?:python|py)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_CLOSING = re.compile(r"^```[ \t]*$", re.MULTILINE)
_OPENING = re.compile(r"^```(?:python|py)[ \t]*$", re.MULTILINE)

_BEFORE = "To act, write Python in a block:\n```python\nprint(6 * 7)\n```\nIt is run and you are shown what it prints. "
_AFTER = "\nTo answer, write no block."


class Code:
    """Tool-call format of Python blocks: fenced with ```` ```python ````, with output in a ```` ```output ```` block.

    The tool named `python` executes the code, or the first tool with exactly one text parameter.
    """

    markers = ("```",)
    stops: tuple[str, ...] = ()
    jinja_tools = (
        "{%- set ns = namespace(runner=none) %}{%- for tool in tools %}{%- set function = tool.function or tool %}"
        "{%- set schemas = ((function.parameters or {}).properties or {}).values() | list %}"
        "{%- if schemas | length == 1 and schemas[0].type == 'string' and schemas[0].enum is not defined "
        "and (ns.runner is none or (function.name == 'python' and ns.runner.name != 'python')) %}"
        "{%- set ns.runner = function %}{%- endif %}{%- endfor %}{%- if ns.runner is not none %}"
        f"{{{{- {json.dumps(_BEFORE)} ~ (ns.runner.description or '') ~ {json.dumps(_AFTER)} }}}}{{%- endif %}}"
    )
    jinja_calls = (
        "{%- if calls | length > 1 %}{{- raise_exception('a turn in this format holds one block') }}{%- endif %}"
        "{{- content }}{%- for call in calls %}{%- set code = call.function.arguments.values() | list | first %}"
        "{{- ('\n' if content else '') ~ '```python\n' ~ code ~ ('' if code.endswith('\n') else '\n') ~ '```' }}"
        "{%- endfor %}"
    )

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return instructions for code blocks, with the description of the tool that executes them.

        Empty without such a tool.
        """
        tool = _runner(tools)
        if tool is None:
            return ""
        return f"{_BEFORE}{tool.description}{_AFTER}"

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its only call as a code block.

        Raises:
            ValueError: If there are several calls, the call is of another tool, or the code contains a fence.
        """
        if not message.tool_calls:
            return message.text
        if len(message.tool_calls) > 1:
            raise ValueError("a turn in this format holds one block")
        tool = _runner(tools)
        if message.tool_calls[0].name != (tool.name if tool is not None else "python"):
            raise ValueError(f"a block runs {tool.name if tool is not None else 'python'} and calls nothing else")
        arguments = list(parse_call_arguments(message.tool_calls[0]).values())
        if len(arguments) != 1 or not isinstance(arguments[0], str) or "```" in arguments[0]:
            raise ValueError("a call in this format is one text without a fence")
        code = arguments[0] if arguments[0].endswith("\n") else arguments[0] + "\n"
        return f"{message.text}{chr(10) if message.text else ''}```python\n{code}```"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse all code blocks of a turn as one call; everything else is text."""
        closed = max((match.end() for match in _CLOSING.finditer(text)), default=0)  # no block ends after it
        blocks = [match[1] for match in _BLOCK.finditer(text[:closed])]
        rest = _BLOCK.sub("", text[:closed]) + text[closed:]
        if _OPENING.search(rest):
            return build_message(rest, ["a block was not closed with ```"])
        if not blocks:
            return build_message(text, [])
        tool = _runner(tools)
        name, parameter = (tool.name, tool.only_text_parameter) if tool is not None else ("python", "code")
        return build_message(rest.rstrip("\n"), [ToolCall(name, dump_json({str(parameter): "".join(blocks)}))])

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return each tool result as a separate user message with an output block."""
        return [user(f"```output\n{m.text}\n```") if m.role == "tool" else m for m in messages]


def _runner(tools: Sequence[ToolSpec]) -> ToolSpec | None:
    one_text = [tool for tool in tools if tool.only_text_parameter is not None]
    return next((tool for tool in one_text if tool.name == "python"), one_text[0] if one_text else None)
