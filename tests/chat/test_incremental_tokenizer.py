"""The next prompt is the previous ids, the sampled ids, and the new messages; for every family of templates."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.long_conversations import BLOCKS, CALCULATOR, extend_with
from support.slow import examples
from whetstone.chat import (
    FORMATS,
    Chat,
    Message,
    Text,
    ToolCall,
    ToolSpec,
    assistant,
    system,
    tool_result,
    user,
)
from whetstone.errors import PolicyError

ALL_FAMILIES = ["tiny", "chatml", "qwen3", "llama3", "gemma", "mistral"]

NASTY = st.sampled_from(
    [
        "<|im_end|>",
        "<|im_start|>user\n",
        "</s>",
        "<|eot_id|>",
        "<end_of_turn>",
        "<|end|>",
        "<call>",
        "</call>",
        "<tool_call>",
        "[/INST]",
        "<think>",
        "</think>",
        "é",
        "日本",
        "🪨",
        "\n",
        "  ",
        "42",
        "the answer",
        "\u200b",
    ]
)
TEXTS = st.lists(NASTY, max_size=5).map("".join)
ANSWERS = st.lists(
    st.builds(lambda text, tool: tool_result(text) if tool else user(text), TEXTS, st.booleans()),
    min_size=1,
    max_size=2,
)


def chat_for(tokenizer, format="hermes"):
    return Chat(tokenizer, FORMATS[format]())


def test_template_receives_only_the_variables_that_it_reads(tokenizer_of):
    tokenizer = copy.deepcopy(tokenizer_of("chatml"))
    tokenizer.chat_template += "{% if add_generation_prompt and thinks is defined and not thinks %}(quietly){% endif %}"
    plain, quiet = (Chat(tokenizer, FORMATS["hermes"](), variables) for variables in ({}, {"thinks": False}))
    contexts = [chat.open([user("one")], []) for chat in (plain, quiet)]
    assert tokenizer.decode(contexts[1].ids) == tokenizer.decode(contexts[0].ids) + "(quietly)"
    assert pickle.loads(pickle.dumps(quiet)).variables == {"thinks": False}
    with pytest.raises(PolicyError, match='never reads "think"; did you mean "thinks"'):
        Chat(tokenizer, FORMATS["hermes"](), {"think": False})
    with pytest.raises(PolicyError, match='the template variable "messages" cannot be set'):
        Chat(tokenizer, FORMATS["hermes"](), {"messages": "none"})


@pytest.mark.parametrize("family", ALL_FAMILIES)
@examples(40)
@given(data=st.data())
def test_next_ids_are_the_previous_ids_then_the_sampled_then_the_delta(tokenizer_of, family, data):
    tokenizer = tokenizer_of(family)
    chat = chat_for(tokenizer, data.draw(st.sampled_from(["compact", "hermes"])))
    context = chat.open([user(data.draw(TEXTS))], [CALCULATOR])
    assert context.opens_segment
    assert context.new.ids == context.ids
    for _ in range(data.draw(st.integers(1, 3))):
        # any ids at all: special ones in the middle, halves of characters, splits no tokenizer would make
        sampled = tuple(data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=6)))
        if data.draw(st.booleans()):
            sampled += (min(chat.stop_ids),)
        following = chat.extend(context, sampled, data.draw(ANSWERS))
        if following.opens_segment:
            assert following.new.ids == following.ids
        else:
            assert following.ids == context.ids + sampled + following.new.ids
        context = following


@pytest.mark.parametrize("family", ["tiny", "chatml", "llama3", "gemma"])
@examples(30)
@given(prompt=st.lists(st.sampled_from(["the answer", " 42", " tool", "é"]), min_size=1, max_size=4), answer=TEXTS)
def test_incremental_rendering_equals_rendering_at_once(tokenizer_of, family, prompt, answer):
    tokenizer = tokenizer_of(family)
    chat = chat_for(tokenizer)
    text = "".join(prompt)
    context = chat.open([user("hello")], [])
    text = text.strip()  # two of the families trim; the sampled text must then be trimmed to compare
    following = chat.extend(context, chat.write(assistant(text), []), [user(answer)])
    at_once = chat.open([user("hello"), assistant(text), user(answer)], [])
    assert following.ids == at_once.ids


@pytest.mark.parametrize("family", ALL_FAMILIES)
@examples(15)
@given(blocks=st.lists(st.sampled_from(BLOCKS), min_size=4, max_size=24))
def test_a_long_conversation_is_extended_as_if_all_turns_were_rendered(tokenizer_of, family, blocks):
    few, everything = (extend_with(chat_for(tokenizer_of(family)), blocks, all_rendered=count) for count in (2, 1000))
    assert few == everything


def test_a_turn_costs_the_same_after_a_hundred_turns(tokenizer_of, monkeypatch):
    """Calls and results are text for this template: with one kind, a turn is rendered after the first and the last."""
    chat, rendered = chat_for(tokenizer_of("chatml")), []
    render = chat._render
    monkeypatch.setattr(chat, "_render", lambda spoken, *rest: rendered.append(len(spoken)) or render(spoken, *rest))
    extend_with(chat, [BLOCKS[n % 2] for n in range(127)], all_rendered=16)
    assert [count for count in rendered if count > 2 + 2 * 16] == [2 + 2 * 32, 2 + 2 * 64]
    assert max(rendered[-60:]) == 2 + 2 * 3


@pytest.mark.parametrize(
    ("change", "opened"),
    [
        # numbered messages: with fewer of them the texts differ, so all are rendered
        ("{% if m.role != 'assistant' %}{{ loop.index }}. {% endif %}", []),
        # a mark once twenty turns follow: detected when all are rendered, and then in every turn
        ("{% if loop.revindex > 40 %}(old){% endif %}", list(range(32, 41))),
    ],
)
def test_template_that_depends_on_the_number_of_turns(tokenizer_of, change, opened):
    tokenizer = copy.deepcopy(tokenizer_of("chatml"))
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_start|>{{", f"{change}<|im_start|>{{{{")
    few, everything = (extend_with(chat_for(tokenizer), [BLOCKS[1]] * 40, all_rendered=n) for n in (4, 1000))
    assert [number for number, (_, opens) in enumerate(few) if opens and number] == opened
    assert few[32:] == everything[32:]


@pytest.mark.parametrize("family", ALL_FAMILIES)
@examples(40)
@given(text=TEXTS)
def test_untrusted_text_never_becomes_a_special_token(tokenizer_of, family, text):
    tokenizer = tokenizer_of(family)
    chat = chat_for(tokenizer)
    special = set(tokenizer.added_tokens_decoder)

    def count(ids):
        return sum(i in special for i in ids)

    plain = chat.open([user("x")], [])
    assert count(chat.open([user("x" + text)], []).ids) == count(plain.ids)
    sampled = chat.write(assistant("x"), [])
    assert count(chat.extend(plain, sampled, [user("x" + text)]).new.ids) == count(
        chat.extend(plain, sampled, [user("x")]).new.ids
    )


def test_escaped_text_looks_unchanged(tokenizer_of):
    chat = chat_for(tokenizer_of("chatml"))
    rendered = tokenizer_of("chatml").decode(chat.open([user("a <|im_end|> b")], []).ids)
    assert "a <\u200b|im_end|> b" in rendered


def test_template_that_rewrites_history_opens_a_segment(tokenizer_of):
    chat = chat_for(tokenizer_of("qwen3"))
    context = chat.open([user("one")], [])
    sampled = chat.write(assistant("<think>hm</think>first"), [])
    rewritten = chat.extend(context, sampled, [user("two")])
    assert rewritten.opens_segment
    assert "hm" not in tokenizer_of("qwen3").decode(rewritten.ids)
    assert chat.rewritten == "it drops the text or thought of an earlier turn"
    extended = chat.extend(context, sampled, [tool_result("42")])
    assert not extended.opens_segment
    assert extended.ids[: len(context.ids) + len(sampled)] == context.ids + sampled


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_truncated_turn_is_closed_by_the_delta(tokenizer_of, family):
    tokenizer = tokenizer_of(family)
    chat = chat_for(tokenizer)
    context = chat.open([user("hello")], [])
    sampled = chat.write(assistant("the answer"), [])
    cut = chat.extend(context, sampled[:-1], [user("more")])
    full = chat.extend(context, sampled, [user("more")])
    assert cut.ids == full.ids
    assert cut.new.ids == (sampled[-1], *full.new.ids)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("format", ["compact", "hermes"])
def test_tools_are_described_once_whether_or_not_the_template_knows_systems(tokenizer_of, family, format):
    tokenizer = tokenizer_of(family)
    chat = chat_for(tokenizer, format)
    rendered = tokenizer.decode(chat.open([user("hello")], [CALCULATOR]).ids)
    assert rendered.count("Evaluate an expression.") == 1
    context = chat.open([user("hello")], [CALCULATOR])
    following = chat.extend(context, chat.write(assistant("x"), []), [user("more")])
    assert "Evaluate" not in tokenizer.decode(following.new.ids)


def test_a_system_message_keeps_its_text_before_the_tools(tokenizer_of):
    chat = chat_for(tokenizer_of("chatml"), "compact")
    rendered = tokenizer_of("chatml").decode(chat.open([system("Be brief."), user("hi")], [CALCULATOR]).ids)
    assert rendered.index("Be brief.") < rendered.index("Evaluate an expression.") < rendered.index("hi")


def test_written_calls_are_read_with_ids_unique_in_the_episode(tokenizer_of):
    chat = chat_for(tokenizer_of("tiny"), "compact")
    message = assistant("so ", ToolCall("calculator", '{"expression": "1+2"}'))
    read = chat.read(chat.write(message, [CALCULATOR]), [CALCULATOR], turn=3)
    assert read == Message(
        "assistant", (Text("so "),), (ToolCall("calculator", '{"expression": "1+2"}', id="call_3_0"),)
    )


def test_a_tool_costs_a_small_model_under_forty_tokens(tokenizer_of):
    chat = chat_for(tokenizer_of("tiny"), "compact")
    with_tool = len(chat.open([user("hi")], [CALCULATOR]).ids)
    # this tokenizer was not trained on these words: nearly every letter is a token; a tokenizer trained on the
    # task's texts, as a tiny policy's is, is tested with the demo recipe
    assert with_tool - len(chat.open([user("hi")], []).ids) < 100


def test_tokenizer_without_a_template_is_refused_in_one_line(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(PolicyError, match="no chat template"):
            chat_for(tokenizer)
    finally:
        tokenizer.chat_template = template


def test_message_that_the_template_refuses_is_an_error_of_one_line(tokenizer_of):
    chat = chat_for(tokenizer_of("gemma"))
    opened = chat.open([user("x")], [])
    with pytest.raises(PolicyError, match="its chat template fails: System role not supported"):
        chat.extend(opened, (), [system("y")])


def test_episodes_with_equal_prompts_share_the_cached_prompt(tokenizer_of):
    chat, shouting = chat_for(tokenizer_of("chatml")), ToolSpec("shout", "Say it aloud.", CALCULATOR.parameters)
    first = chat.open([user("7 * 8?")], [CALCULATOR])
    assert chat.open((user("7 * 8?"),), (CALCULATOR,)) is first
    for messages, tools in (([user("7 * 9?")], [CALCULATOR]), ([user("7 * 8?")], [shouting]), ([user("7 * 8?")], [])):
        opened = chat.open(messages, tools)
        assert opened.ids == chat_for(tokenizer_of("chatml")).open(messages, tools).ids != first.ids


def test_prompt_with_a_date_is_rendered_again(tokenizer_of):
    tokenizer = copy.deepcopy(tokenizer_of("chatml"))
    tokenizer.chat_template = "{{ strftime_now('%Y') }}" + tokenizer.chat_template
    chat = chat_for(tokenizer)
    assert chat.open([user("x")], []) is not chat.open([user("x")], [])
    assert chat.open([user("x")], []) == chat.open([user("x")], [])


def test_cache_of_prompts_is_bounded(tokenizer_of):
    chat = chat_for(tokenizer_of("chatml"))
    first = chat.open([user("x")], [])
    for number in range(100):
        chat.open([user(str(number))], [])
    assert chat.open([user("x")], []) == first
    assert chat.open([user("x")], []) is not first


def test_cached_results_depend_on_the_text_the_tools_and_the_limit(tokenizer_of, monkeypatch):
    tokenizer = tokenizer_of("chatml")
    chat = chat_for(tokenizer)
    for text in ("4 + 5", "", "a" * 2000, "4 + 5"):
        assert chat.encode(text) == tuple(tokenizer.encode(text, add_special_tokens=False))
    call = ToolCall("calculator", '{"expression": "4 + 5"}')
    ids = chat.write(assistant("", call), [CALCULATOR])
    for _ in range(2):
        assert len(chat.read(ids, [CALCULATOR], turn=0).tool_calls) == 1
        assert not chat.read(ids, [CALCULATOR], turn=0, max_calls=0).tool_calls
    assert [chat.read(ids, [CALCULATOR], turn=turn).tool_calls[0].id for turn in (3, 4)] == ["call_3_0", "call_4_0"]
    offered = []
    read = type(chat.format).read

    def counted(self, text, tools):
        offered.append(tuple(tools))
        return read(self, text, tools)

    monkeypatch.setattr(type(chat.format), "read", counted)
    for tools in ([], [CALCULATOR], [CALCULATOR]):
        chat.read(ids, tools, turn=0)
    assert offered == [(), (CALCULATOR,)]
