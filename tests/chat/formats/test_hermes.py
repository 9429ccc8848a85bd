import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.chat import Message, Text, ToolCall, ToolSpec, assistant, tool_result, user
from whetstone.chat.formats import Hermes

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=8) | st.lists(st.booleans()), max_size=3
)


def test_tools_are_described_as_schemas_one_per_line():
    rendered = Hermes().describe([ADD])
    (line,) = [line for line in rendered.splitlines() if line.startswith('{"type"')]
    assert json.loads(line) == ADD.to_openai()
    assert Hermes().describe([]) == ""


@given(ARGUMENTS, st.text(max_size=12))
def test_written_message_is_read_as_the_same_message(arguments, text):
    if any(tag in text + json.dumps(arguments) for tag in ("<tool_call>", "</tool_call>", "</think>")):
        return
    text = text.rstrip("\n")
    message = assistant(text, ToolCall("add", json.dumps(arguments)))
    read = Hermes().read(Hermes().write(message, [ADD]), [ADD])
    assert read.text == message.text
    assert [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [("add", arguments)]


def test_call_inside_a_thought_is_ignored():
    text = '<think><tool_call>{"name": "add", "arguments": {}}</tool_call></think>no call'
    read = Hermes().read(text, [ADD])
    assert read == Message("assistant", (Text(text),))


@given(
    st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "{",
                "}",
                '"name"',
                ":",
                '"add"',
                "[" * 500,
                "</think>",
                ",",
                '"arguments"',
                "1",
            ]
        ),
        max_size=10,
    ).map("".join)
)
def test_reading_any_text_succeeds(text):
    assert isinstance(Hermes().read(text, [ADD]), Message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<tool_call>{'name': 'add'}</tool_call>", "must be followed by calls as JSON"),
        ('<tool_call>["add"]</tool_call>', "a call must be an object"),
        ('<tool_call>{"name": "add"}</tool_call>', '"name" and "arguments"'),
        ('<tool_call>{"name": "add"', "must be followed by calls as JSON"),
        ('<tool_call>{"name": "add", "arguments": {}}', "not closed"),
    ],
)
def test_malformed_call_names_the_reason(text, message):
    read = Hermes().read(text, [ADD])
    assert not read.tool_calls
    assert message in read.malformed[0]


def test_consecutive_results_share_a_user_message():
    rendered = Hermes().results([tool_result("1"), tool_result("2"), user("go on")])
    assert [m.role for m in rendered] == ["user", "user"]
    assert rendered[0].text == "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
