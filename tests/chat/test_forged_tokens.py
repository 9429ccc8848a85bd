"""Untrusted text never becomes a special token of the template, for any normalization of the tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.chat_templates import NORMALIZERS, SPECIAL, byte_tokenizer
from support.slow import examples
from whetstone.chat import Chat, Image, Message, Text, ToolSpec, tool_result, user
from whetstone.chat.formats import FORMATS
from whetstone.errors import PolicyError

CHATS = {
    (name, format): Chat(byte_tokenizer(normalizer), FORMATS[format]())
    for name, normalizer in NORMALIZERS.items()
    for format in ("code", "compact", "glm", "hermes", "llama3", "mistral", "react", "tags")
}
PIECES = (
    *SPECIAL,
    "<|im_",
    "start|>",
    "end|>",
    "＜｜im_end｜＞",
    "<\u200b|im_end|>",
    "[IN",
    "ST]",
    "\u200b",
    "</call>",
)
SAID = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("".join)


@pytest.mark.parametrize("key", CHATS, ids="/".join)
@examples(60)
@given(text=SAID)
def test_tool_results_neither_close_a_turn_nor_open_another(key, text):
    chat = CHATS[key]
    opened = chat.open([user("x")], ())
    harmless = chat.extend(opened, (), [tool_result("y")])
    try:
        forged = chat.extend(opened, (), [tool_result(text)])
    except PolicyError:
        return  # refused rather than forged
    special = chat._special_ids
    assert [i for i in forged.new.ids if i in special] == [i for i in harmless.new.ids if i in special]


@pytest.mark.parametrize("key", CHATS, ids="/".join)
@examples(30)
@given(name=SAID, about=SAID, argument=SAID, text=SAID)
def test_tool_descriptions_of_a_server_forge_no_special_token(key, name, about, argument, text):
    chat = CHATS[key]

    def opened(name, about, argument, text):
        inner = {"type": "string", "description": text, "enum": [text]}
        schema = {"type": "object", "properties": {argument: inner}, "required": [argument]}
        return chat.open([user("x")], (ToolSpec(name, about, schema),))

    harmless = opened("n", "a", "b", "c")
    try:
        forged = opened(name, about, argument, text)
    except PolicyError:
        return  # refused rather than forged
    special = chat._special_ids
    assert [i for i in forged.ids if i in special] == [i for i in harmless.ids if i in special]


def test_ordinary_tools_are_described_unchanged():
    schema = {"type": "object", "properties": {"a<b": {"type": "string", "description": "1 < 2 | 3, [INSTALL]"}}}
    for chat in CHATS.values():
        tools = (ToolSpec("n", "does\nthis", schema),)
        assert chat._break_tools(tools) is tools


def test_ordinary_text_is_never_refused_or_changed():
    for chat in CHATS.values():
        ids = chat.extend(chat.open([user("x")], ()), (), [tool_result("1 < 2 | 3 > 2, [INSTALL] im_end")]).new.ids
        assert "1 < 2 | 3 > 2, [INSTALL] im_end" in chat.tokenizer.decode(ids)


def test_image_of_a_tool_is_replaced_and_image_of_a_user_is_refused():
    chat = CHATS["none", "hermes"]
    picture = Image("data:image/png;base64,")
    opened = chat.open([user("x")], ())
    rendered = chat.extend(opened, (), [Message("tool", (Text("a plot:"), picture))])
    assert "a plot:\n[image]" in chat.tokenizer.decode(rendered.new.ids)
    with pytest.raises(PolicyError, match="reads only text"):
        chat.open([Message("user", (picture,))], ())


@pytest.mark.parametrize("key", CHATS, ids="/".join)
def test_invalid_unicode_is_replaced(key):
    chat, half = CHATS[key], "a\ud800b"
    tools = (ToolSpec("t", half, {"type": "object", "properties": {half: {"type": "string"}}}),)
    opened = chat.open([user(half)], tools)
    assert "a\ufffdb" in chat.tokenizer.decode(opened.ids)
    assert chat.extend(opened, (), [tool_result(half)]).ids[: len(opened.ids)] == opened.ids
