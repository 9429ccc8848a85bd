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


def test_tools_are_shown_as_schemas_one_a_line():
    shown = Hermes().describe([ADD])
    (line,) = [line for line in shown.splitlines() if line.startswith('{"type"')]
    assert json.loads(line) == ADD.to_openai()
    assert Hermes().describe([]) == ""


@given(ARGUMENTS, st.text(max_size=12))
def test_reading_what_was_written_gives_the_same_message(arguments, text):
    if any(tag in text + json.dumps(arguments) for tag in ("<tool_call>", "</tool_call>", "</think>")):
        return
    text = text.rstrip("\n")
    message = assistant(text, ToolCall("add", json.dumps(arguments)))
    read = Hermes().read(Hermes().write(message, [ADD]), [ADD])
    assert read.text == message.text
    assert [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [("add", arguments)]


def test_a_call_inside_a_thought_is_no_call():
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
def test_no_text_makes_reading_raise(text):
    assert isinstance(Hermes().read(text, [ADD]), Message)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<tool_call>{'name': 'add'}</tool_call>", "must be followed by calls as JSON"),
        ('<tool_call>["add"]</tool_call>', "a call must be an object"),
        ('<tool_call>{"name": "add"}</tool_call>', '"name" and "arguments"'),
        ('<tool_call>{"name": "add"', "must be followed by calls as JSON"),
        ('<tool_call>{"name": "add", "arguments": {}}', "not closed"),
    ],
)
def test_what_cannot_be_read_says_why(text, said):
    read = Hermes().read(text, [ADD])
    assert not read.tool_calls
    assert said in read.malformed[0]


def test_neighbouring_answers_share_a_user_message():
    shown = Hermes().results([tool_result("1"), tool_result("2"), user("go on")])
    assert [m.role for m in shown] == ["user", "user"]
    assert shown[0].text == "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
