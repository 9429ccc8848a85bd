"""Tool calls in few tokens, for small models: `<call>name(argument, …)</call>`.

JSON schemas overload small models: here one tool costs one line of the prompt, and a call costs little more than its
arguments. Arguments are Python literals, by position or by name. A tool whose only parameter is a string takes the text
between the parentheses unchanged, without quotes.

Note:
    The closing parenthesis of a call is the *last* one, so `calculator((1+2)*3)` is complete.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from whetstone.chat.formats.json_call import dump_json, parse_call_arguments
from whetstone.chat.message import Message, Text, ToolCall, ToolSpec, user
from whetstone.python_syntax import parse_expression

_CALL = re.compile(r"<call>(.*?)</call>", re.DOTALL)
_NAME_AND_ARGUMENTS = re.compile(r"\s*([^\s()]+)\((.*)\)\s*", re.DOTALL)
_OF_UNKNOWN_TOOLS = "input"
_TYPE_NAMES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}

_JINJA_TOOLS = (
    "{%- for tool in tools %}{%- set function = tool.function or tool %}"
    "{%- set parameters = function.parameters or {} %}{{- '' if loop.first else '\n' }}<call>{{ function.name }}("
    "{%- for name, schema in (parameters.properties or {}).items() %}{{- '' if loop.first else ', ' }}{{ name }}: "
    "{%- set ns = namespace(kinds=[]) %}{%- if schema.enum is defined and schema.enum is sequence %}"
    "{%- for choice in schema.enum %}{%- set ns.kinds = ns.kinds + ['%r' | format(choice)] %}{%- endfor %}"
    "{%- else %}{%- set types = schema.type if schema.type is defined else '' %}"
    "{%- for type in ([types] if types is string else types) %}"
    f"{{%- set kind = {json.dumps(_TYPE_NAMES)}.get(type, 'any') %}}"
    "{%- if kind not in ns.kinds %}{%- set ns.kinds = ns.kinds + [kind] %}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- ' ' ~ ns.kinds | join('|') }}{%- if name not in (parameters.required or []) %}"
    "{{- '=' ~ '%r' | format(schema.default if schema.default is defined else none) }}{%- endif %}{%- endfor %}"
    ")</call> {{ (function.description or '').split('\n')[0] }}{%- endfor %}"
)
_JINJA_CALLS = (
    "{{- content }}{%- for call in calls %}{%- set arguments = call.function.arguments %}"
    "{%- if arguments is string %}{{- raise_exception('arguments of a call must be an object, not JSON text') }}"
    "{%- endif %}{%- set ns = namespace(properties={}, is_known=false) %}{%- for tool in tools or [] %}"
    "{%- set function = tool.function or tool %}{%- if function.name == call.function.name %}"
    "{%- set ns.is_known = true %}{%- set ns.properties = (function.parameters or {}).properties or {} %}"
    "{%- endif %}{%- endfor %}{%- set names = ns.properties | list %}{%- set given = arguments | list %}"
    "{%- set only = names[0] if names | length == 1 and ns.properties[names[0]].type == 'string' "
    "and ns.properties[names[0]].enum is not defined else ('' if ns.is_known else 'input') %}"
    "{{- '<call>' ~ call.function.name ~ '(' }}"
    "{%- if only and given == [only] and arguments[only] is string %}{{- arguments[only] }}{%- else %}"
    "{%- for name, value in arguments.items() %}{{- '' if loop.first else ', ' }}"
    "{{- '' if names[:given | length] == given else name ~ '=' }}{{- '%r' | format(value) }}{%- endfor %}{%- endif %}"
    "{{- ')</call>' }}{%- endfor %}"
)


class Compact:
    """Tool-call format for small models: `<call>calculator(12*34)</call>`, with results as `<result>408</result>`."""

    markers = ("<call>", "</call>", "<result>", "</result>")
    stops: tuple[str, ...] = ()
    jinja_tools = _JINJA_TOOLS
    jinja_calls = _JINJA_CALLS

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return one line per tool: name, parameters with types, and the first line of its description."""
        return "\n".join(f"<call>{_signature(tool)}</call> {tool.description.partition(chr(10))[0]}" for tool in tools)

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, followed by its calls.

        Raises:
            ValueError: If a call would be parsed as a different call: its name contains spaces, a value is not a Python
                literal, or a text contains `</call>`.
        """
        by_name = {tool.name: tool for tool in tools}
        calls = []
        for call in message.tool_calls:
            inside = f"{call.name}({_write_arguments(call, by_name.get(call.name))})"
            back = _read_call(inside, by_name)
            if "</call>" in inside or not _same(back, call, known=call.name in by_name):
                raise ValueError(f"{call.name}: {_shortened(inside)} is a call the compact format cannot express")
            calls.append(f"<call>{inside}</call>")
        return message.text + "".join(calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse every `<call>…</call>` in order; everything else is text."""
        by_name = {tool.name: tool for tool in tools}
        calls: list[ToolCall] = []
        malformed: list[str] = []
        closed = text.rfind("</call>") + len("</call>") if "</call>" in text else 0  # no call ends after it
        for match in _CALL.finditer(text, 0, closed):
            parsed = _read_call(match.group(1), by_name)
            if isinstance(parsed, ToolCall):
                calls.append(parsed)
            else:
                malformed.append(parsed)
        rest = _CALL.sub("", text[:closed]) + text[closed:]
        if "<call>" in rest:
            malformed.append("a <call> was not closed with </call>")
            rest = rest.partition("<call>")[0]
        return Message("assistant", (Text(rest),) if rest else (), tuple(calls), malformed=tuple(malformed))

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages; consecutive results share one message."""
        written: list[Message] = []
        previous = None
        for message in messages:
            if message.role != "tool":
                written.append(message)
            elif previous == "tool":
                written[-1] = user(f"{written[-1].text}<result>{message.text}</result>")
            else:
                written.append(user(f"<result>{message.text}</result>"))
            previous = message.role
        return written


def _signature(tool: ToolSpec) -> str:
    required = tool.parameters.get("required") or ()
    parameters = []
    for name, schema in tool.properties.items():
        choices, types = schema.get("enum"), schema.get("type", "")
        kinds = [_TYPE_NAMES.get(str(kind), "any") for kind in (types if isinstance(types, list) else [types])]
        kind = "|".join(map(repr, choices) if isinstance(choices, list) else dict.fromkeys(kinds))
        optional = "" if name in required else f"={schema.get('default')!r}"
        parameters.append(f"{name}: {kind}{optional}")
    return f"{tool.name}({', '.join(parameters)})"


def _write_arguments(call: ToolCall, tool: ToolSpec | None) -> str:
    arguments = parse_call_arguments(call)
    only = tool.only_text_parameter if tool is not None else _OF_UNKNOWN_TOOLS
    if only is not None and list(arguments) == [only] and isinstance(raw := arguments[only], str):
        return raw
    order = list(tool.properties) if tool is not None else []
    positional = order[: len(arguments)] == list(arguments)
    return ", ".join(repr(value) if positional else f"{name}={value!r}" for name, value in arguments.items())


def _read_call(inside: str, tools: dict[str, ToolSpec]) -> ToolCall | str:
    """Parse the text between `<call>` and `</call>`; return an error text if it is malformed."""
    match = _NAME_AND_ARGUMENTS.fullmatch(inside)
    if match is None:
        return f"a call is written name(arguments), got {_shortened(inside)}"
    name, text = match.groups()
    tool = tools.get(name)
    if tool is None:  # the environment reports which tools exist
        return ToolCall(name, dump_json({_OF_UNKNOWN_TOOLS: text}))
    if tool.only_text_parameter is not None:
        nothing = not text and tool.only_text_parameter not in (tool.parameters.get("required") or ())
        return ToolCall(name, dump_json({} if nothing else {tool.only_text_parameter: text}))
    try:
        parsed = parse_expression(f"f({text})")
        if not isinstance(parsed, ast.Call) or any(keyword.arg is None for keyword in parsed.keywords):
            raise ValueError("not a list of arguments")
        order = list(tool.properties)
        if len(parsed.args) > len(order):
            return f"{name} takes {len(order)} arguments, got {len(parsed.args)}"
        arguments: dict[str, Any] = dict(zip(order, map(ast.literal_eval, parsed.args), strict=False))
        for keyword in parsed.keywords:
            if keyword.arg in arguments:
                return f"{name} got two values for {keyword.arg}"
            arguments[str(keyword.arg)] = ast.literal_eval(keyword.value)
        return ToolCall(name, dump_json(arguments))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return f"the arguments of {name} are not values separated by commas: {_shortened(text)}"


def _same(back: ToolCall | str, call: ToolCall, *, known: bool) -> bool:
    """Return whether a written call was parsed back unchanged.

    For an unknown tool only the name is compared.
    """
    if isinstance(back, str) or back.name != call.name:
        return False
    return not known or json.dumps(parse_call_arguments(back)) == json.dumps(parse_call_arguments(call))


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
