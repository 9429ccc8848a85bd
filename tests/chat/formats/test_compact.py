import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.chat import Message, Text, ToolCall, ToolSpec, assistant, tool_result
from whetstone.chat.formats import Compact


def spec(name="f", required=(), **properties):
    return ToolSpec(
        name, "Does a thing.\nAt length.", {"type": "object", "properties": properties, "required": [*required]}
    )


CALCULATOR = spec("calculator", ["expression"], expression={"type": "string"})
SHOP = spec("order", ["item"], item={"type": "string"}, count={"type": "integer", "default": 1})
TOOLS = [CALCULATOR, SHOP]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def test_one_tool_is_one_line_of_prompt():
    assert Compact().describe([CALCULATOR]) == "<call>calculator(expression: str)</call> Does a thing."
    assert Compact().describe([SHOP]) == "<call>order(item: str, count: int=1)</call> Does a thing."
    assert Compact().describe([]) == ""


def test_the_only_text_argument_is_taken_as_it_is():
    read = Compact().read('<call>calculator((1+2)*"3")</call>', TOOLS)
    assert json.loads(read.tool_calls[0].arguments) == {"expression": '(1+2)*"3"'}


def test_arguments_go_by_position_and_by_name():
    read = Compact().read("I take <call>order('tea, green', count=2)</call>", TOOLS)
    assert read.text == "I take "
    assert json.loads(read.tool_calls[0].arguments) == {"item": "tea, green", "count": 2}


@given(item=JSON, count=JSON, text=st.text(max_size=10).filter(lambda t: "<call>" not in t and "</call>" not in t))
def test_reading_what_was_written_gives_the_same_message(item, count, text):
    message = assistant(text, ToolCall("order", json.dumps({"item": item, "count": count})))
    if "</call>" in json.dumps([item, count]):
        return
    read = Compact().read(Compact().write(message, TOOLS), TOOLS)
    assert read.text == message.text
    assert [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [("order", {"item": item, "count": count})]


@given(
    st.lists(
        st.sampled_from(
            [
                "<call>",
                "</call>",
                "order(",
                "calculator(",
                ")",
                "1",
                "'",
                ",",
                "=",
                "x",
                "(" * 200,
                "\\",
                "*",
                "{",
                "\x00",
            ]
        ),
        max_size=12,
    ).map("".join)
)
def test_no_text_makes_reading_raise(text):
    read = Compact().read(text, TOOLS)
    assert isinstance(read, Message)
    for call in read.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<call>order</call>", "name(arguments)"),
        ("<call>order(1, 2, 3)</call>", "takes 2 arguments, got 3"),
        ("<call>order('a', item='b')</call>", "two values for item"),
        ("<call>order(__import__('os'))</call>", "not values separated by commas"),
        ("<call>order('a'", "not closed"),
    ],
)
def test_what_cannot_be_read_says_why(text, said):
    read = Compact().read(text, TOOLS)
    assert not read.tool_calls
    assert said in read.malformed[0]


def test_an_unknown_tool_is_still_a_call():
    assert Compact().read("<call>fly(up)</call>", TOOLS).tool_calls[0].name == "fly"


def test_neighbouring_answers_share_a_message():
    shown = Compact().results([tool_result("1"), tool_result("2")])
    assert shown == [Message("user", (Text("<result>1</result><result>2</result>"),))]


def test_what_the_format_cannot_express_is_refused():
    with pytest.raises(ValueError, match="</call>"):
        Compact().write(assistant("", ToolCall("calculator", json.dumps({"expression": "</call>"}))), TOOLS)


def test_a_text_that_may_be_left_out_is_left_out():
    schema = spec("schema", table={"type": "string", "default": ""})
    for arguments, written in (({}, "<call>schema()</call>"), ({"table": "shop"}, "<call>schema(shop)</call>")):
        message = Message("assistant", (), (ToolCall("schema", json.dumps(arguments)),))
        assert Compact().write(message, [schema]) == written
        assert json.loads(Compact().read(written, [schema]).tool_calls[0].arguments) == arguments
    needed = Compact().read("<call>calculator()</call>", TOOLS)
    assert json.loads(needed.tool_calls[0].arguments) == {"expression": ""}
