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


def test_single_text_argument_is_not_parsed():
    read = Compact().read('<call>calculator((1+2)*"3")</call>', TOOLS)
    assert json.loads(read.tool_calls[0].arguments) == {"expression": '(1+2)*"3"'}


def test_arguments_by_position_and_by_name():
    read = Compact().read("I take <call>order('tea, green', count=2)</call>", TOOLS)
    assert read.text == "I take "
    assert json.loads(read.tool_calls[0].arguments) == {"item": "tea, green", "count": 2}


@given(item=JSON, count=JSON, text=st.text(max_size=10).filter(lambda t: "<call>" not in t and "</call>" not in t))
def test_written_message_is_read_as_the_same_message(item, count, text):
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
def test_reading_any_text_succeeds(text):
    read = Compact().read(text, TOOLS)
    assert isinstance(read, Message)
    for call in read.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<call>order</call>", "name(arguments)"),
        ("<call>order(1, 2, 3)</call>", "takes 2 arguments, got 3"),
        ("<call>order('a', item='b')</call>", "two values for item"),
        ("<call>order(__import__('os'))</call>", "not values separated by commas"),
        ("<call>order('a'", "not closed"),
    ],
)
def test_malformed_call_names_the_reason(text, message):
    read = Compact().read(text, TOOLS)
    assert not read.tool_calls
    assert message in read.malformed[0]


def test_an_unknown_tool_is_still_a_call():
    assert Compact().read("<call>fly(up)</call>", TOOLS).tool_calls[0].name == "fly"


def test_consecutive_results_share_a_message():
    rendered = Compact().results([tool_result("1"), tool_result("2")])
    assert rendered == [Message("user", (Text("<result>1</result><result>2</result>"),))]


def test_inexpressible_calls_are_refused():
    with pytest.raises(ValueError, match="</call>"):
        Compact().write(assistant("", ToolCall("calculator", json.dumps({"expression": "</call>"}))), TOOLS)


def test_optional_text_is_omitted():
    schema = spec("schema", table={"type": "string", "default": ""})
    for arguments, written in (({}, "<call>schema()</call>"), ({"table": "shop"}, "<call>schema(shop)</call>")):
        message = Message("assistant", (), (ToolCall("schema", json.dumps(arguments)),))
        assert Compact().write(message, [schema]) == written
        assert json.loads(Compact().read(written, [schema]).tool_calls[0].arguments) == arguments
    needed = Compact().read("<call>calculator()</call>", TOOLS)
    assert json.loads(needed.tool_calls[0].arguments) == {"expression": ""}
