"""Tool calls of a model: any text is parsed into calls or errors, and rendered calls are parsed back unchanged.

Texts consist of the markers of the formats, complete and in pieces, with arbitrary text between them.
"""

from __future__ import annotations

import json
from typing import Any

from fuzzing.choices import Choices, require
from whetstone.chat import FORMATS, Message, Text, ToolCall, ToolCallFormat, ToolSpec, tool_result, user
from whetstone.chat.formats import json_call

NAMES = ("python", "search", "sql", "code", "calculator", "f", "a-b", "a.b", "été")
WORDS = (
    *NAMES, "<call>", "</call>", "<result>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<search>",
    "</search>",
    "<information>", "<code>", "</code>", "<python>", "</python>", "```python\n", "```py", "\n```", "```\n",
    "<|python_tag|>",
    "[TOOL_CALLS]", "[ARGS]", "[{", "}]", '{"name": "f", ', '"arguments": {', '"parameters": {"a": 1}}', "}}", "; ",
    "Thought: ",
    "\nAction: ", "Action: f", "\nAction Input: ", "Action Input: {}", "Observation:", "f(", "f(1, 2)", "f(a=1)",
    "f(*a, **b)",
    "python(", "print('x')", "f[", "lambda: 0", "-1", "'s'", "b'x'", "...", "{1: 2}", "{1, 2}", "1 + 2j", "f'{x}'",
    "a" * 40,
)  # fmt: skip
TEXT = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
TWO = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}},
    "required": ["a"],
}
ODD = (
    {"type": "object", "properties": {"a": True}},
    {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
    {"type": "object"},
    {"type": "object", "properties": {"é": {"enum": ["x"]}, "for": {}, "a b": {"type": "integer"}}},
)


def format_of(name: str) -> ToolCallFormat:
    """Return a tool-call format by its name."""
    return FORMATS[name]()


def generate_tools(choices: Choices) -> list[ToolSpec]:
    """Generate tools."""
    schemas = (TEXT, TWO, *ODD)
    tools = choices.some(lambda: ToolSpec(choices.one(NAMES), choices.text(WORDS, 2), choices.one(schemas)), 4)
    return list({tool.name: tool for tool in tools}.values())


def any_text(choices: Choices, name: str, tools: list[ToolSpec]) -> None:
    """Parse an arbitrary text, which must not raise."""
    text = choices.note("text", choices.text(WORDS, 20))
    format = format_of(name)
    message = format.read(text, tools)
    require(message.role == "assistant", "a message of somebody else", message.role)
    require(
        all(isinstance(c.name, str) and isinstance(c.arguments, str) for c in message.tool_calls), "a call that is none"
    )
    require(
        all(isinstance(wrong, str) and len(wrong) < 1000 for wrong in message.malformed),
        "no short reason",
        message.malformed,
    )
    require(len(message.text) <= len(text), "the result is longer than the text", message.text)
    json.dumps(message.to_openai())
    require(Message.from_openai(message.to_openai()) == message, "a message that changes on its way", message)
    format.results([user(text), tool_result(text), tool_result("x")])
    if message.tool_calls and not message.malformed:
        try:
            written = format.write(message, tools)
        except ValueError:
            return
        back = format.read(written, tools)
        require(
            _same(back.tool_calls, message.tool_calls),
            "calls change when they are written again",
            (message, written, back),
        )


def valid_calls(choices: Choices, name: str, tools: list[ToolSpec]) -> None:
    """Render calls and check that they are parsed back."""
    calls: list[ToolCall] = []
    if not tools:
        return
    for _ in range(1 + choices.below(2)):
        tool = choices.one(tools)
        value = choices.text(WORDS, 4) if choices.often(160) else choices.value(WORDS, 2)
        calls.append(ToolCall(tool.name, json.dumps(dict.fromkeys(tool.properties, value))))
    text = choices.one(("", "", "I look it up.", "Now:\n"))
    message = choices.note("message", Message("assistant", (Text(text),) if text else (), tuple(calls)))
    format = format_of(name)
    try:
        written = choices.note("written", format.write(message, tools))
    except ValueError:
        return
    back = choices.note("back", format.read(written, tools))
    require(_same(back.tool_calls, message.tool_calls), f"{name} does not read what it wrote", (message, written, back))
    require(not back.malformed, f"{name} finds fault with what it wrote", back.malformed)


def _same(some: tuple[ToolCall, ...], others: tuple[ToolCall, ...]) -> bool:
    return [(c.name, _value(c.arguments)) for c in some] == [(c.name, _value(c.arguments)) for c in others]


def _value(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, dict) and len(value) == 1 and isinstance(text := next(iter(value.values())), str):
        return text.strip()  # formats with a single text argument surround it by white space
    return repr(value)


def one(choices: Choices) -> None:
    """Run one input."""
    name = choices.note("format", choices.one(sorted(FORMATS)))
    tools = choices.note("tools", generate_tools(choices))
    format_of(name).describe(tools)
    (valid_calls if choices.often(100) else any_text)(choices, name, tools)


def plant() -> None:
    """Plant a read of arguments without a check for their presence."""
    honest = json_call._read_call

    def careless(value: Any, *rest: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"] == "f":
            raise KeyError("planted")
        return honest(value, *rest)

    vars(json_call)["_read_call"] = careless
