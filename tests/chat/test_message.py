import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.chat import Image, Message, Text, ToolCall

PARTS = st.lists(st.builds(Text, st.text(max_size=5)) | st.builds(Image, st.just("data:image/png;base64,")), max_size=3)
CALLS = st.lists(st.builds(ToolCall, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)), max_size=2)


@given(PARTS, CALLS, st.none() | st.text(max_size=4))
def test_message_survives_conversion_to_openai_format(parts, calls, call_id):
    message = Message("assistant", tuple(parts), tuple(calls), call_id)
    back = Message.from_openai(message.to_openai())
    assert back.text == message.text
    assert (back.tool_calls, back.tool_call_id) == (message.tool_calls, message.tool_call_id)
    if any(isinstance(part, Image) for part in parts):
        assert back.content == message.content


def test_keys_differ_by_image_with_equal_texts():
    cat, dog = (Message("tool", (Text("seen: "), Image(url))) for url in ("data:cat", "data:dog"))
    assert cat.text == dog.text
    assert cat.key != dog.key
    assert Message("user", (Text("a"), Text("b"))).key == Message("user", (Text("ab"),)).key


def test_content_null_is_empty():
    assert Message.from_openai({"role": "assistant", "content": None}) == Message("assistant")


@pytest.mark.parametrize(
    "written",
    [
        "hello",
        None,
        {"content": "x"},
        {"role": "robot", "content": "x"},
        {"role": ["user"], "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
        {"role": "user", "content": [{"type": ["text"]}]},
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant", "tool_calls": [{"function": "x"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "malformed": [5]},
        {"role": "tool", "tool_call_id": 5},
    ],
)
def test_invalid_message_is_a_value_error(written):
    with pytest.raises(ValueError, match=r"message|here|part|call|expected a"):
        Message.from_openai(written)
