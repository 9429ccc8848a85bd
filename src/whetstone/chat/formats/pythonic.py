"""How do LFM2 models call tools? As a list of calls in Python between two signs: `[weather(city="Oslo", days=2)]`.

Easy to get wrong: it is read as Python's grammar and never run; arguments are values, and each has its name.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from whetstone.chat.formats.json_call import arguments_of, message_of
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_WORDS = {"true": True, "false": False, "null": None}


class Pythonic:
    """`<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>`."""

    markers = (_BEGIN, _END)
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        return told(tools, f'{_BEGIN}[name(key="text", other=2)]{_END}')

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls.

        Raises:
            ValueError: A call could not be read back: a name is none of Python's, a text holds the end of the calls.
        """
        if not message.tool_calls:
            return message.text
        calls, given = [], []
        for call in message.tool_calls:
            arguments = arguments_of(call)
            if not isinstance(arguments, dict):
                raise ValueError(f"{call.name}: arguments must be a JSON object, got {call.arguments[:60]}")
            calls.append(f"{call.name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})")
            given.append((call.name, arguments))
        written = f"{message.text}{_BEGIN}[{', '.join(calls)}]{_END}"
        if [(one.name, json.loads(one.arguments)) for one in self.read(written, tools).tool_calls] != given:
            raise ValueError(f"{calls[0][:60]} is a call this format cannot express")
        return written

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """The calls between the signs; what stands before them is what the model says."""
        said, there, behind = text.partition(_BEGIN)
        if not there:
            return message_of(text, [])
        inside, closed, rest = behind.partition(_END)
        if not closed:
            return message_of(said, [f"{_BEGIN} was not closed with {_END}"])
        try:
            listed = ast.parse(inside.strip(), mode="eval").body
            calls = listed.elts if isinstance(listed, ast.List) else [listed]
            return message_of(said + rest, [_call(call) for call in calls] or ["a list of calls was empty"])
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return message_of(said, [f"calls are a list in Python: {error}"])

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)


def _call(call: ast.expr) -> ToolCall | str:
    if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
        return "a call is written name(key=value)"
    name = ast.unparse(call.func)
    try:
        return ToolCall(name, json.dumps({str(one.arg): _value(one.value) for one in call.keywords}))
    except (ValueError, TypeError):
        return f"an argument of {name} is no value"


def _value(node: ast.expr) -> object:
    """A literal, also with JSON's words for what Python writes with a capital."""
    named = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    if any(one.id not in _WORDS for one in named):
        raise ValueError("a name is no value")

    class Worded(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Constant(_WORDS[name.id])

    return ast.literal_eval(Worded().visit(node))
