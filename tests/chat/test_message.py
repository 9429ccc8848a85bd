from hypothesis import given
from hypothesis import strategies as st

from whetstone.chat import Image, Message, Text, ToolCall

PARTS = st.lists(st.builds(Text, st.text(max_size=5)) | st.builds(Image, st.just("data:image/png;base64,")), max_size=3)
CALLS = st.lists(st.builds(ToolCall, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)), max_size=2)


@given(PARTS, CALLS, st.none() | st.text(max_size=4))
def test_a_message_survives_the_openai_shape(parts, calls, call_id):
    message = Message("assistant", tuple(parts), tuple(calls), call_id)
    back = Message.from_openai(message.to_openai())
    assert back.text == message.text
    assert (back.tool_calls, back.tool_call_id) == (message.tool_calls, message.tool_call_id)
    if any(isinstance(part, Image) for part in parts):
        assert back.content == message.content


def test_content_null_is_no_content():
    assert Message.from_openai({"role": "assistant", "content": None}) == Message("assistant")
