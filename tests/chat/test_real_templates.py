"""Chat templates of real models: calls are read as written, and history equals the rendered template."""

import importlib
import random
import sys
from pathlib import Path

import pytest

from support.chat_templates import CHATML, axolotl_templates, real_templates, real_tokenizer, tokenizer_with
from support.long_conversations import BLOCKS, extend_with
from support.slow import mostly_slow
from whetstone.chat import FORMATS, Chat, ToolCall, assistant, detect_tool_call_format, system, tool_result, user
from whetstone.chat.template_probe import TOOL
from whetstone.errors import PolicyError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "exact"))
measured = importlib.import_module("templates")
parsed_turns = importlib.import_module("parsed_turns")
REAL = real_templates()
ALL = {**REAL, **axolotl_templates()}
OF_LLAMA_CPP = [name for name in REAL if "/" not in name]
NOT_CARRIED = {"llama-cpp-rwkv-world": "could never end one"}
"""Refused templates, with the problem."""
QUICK = ["moonshotai-Kimi-K2", "GLM-4.6"]


def chat_of(name):
    tokenizer = real_tokenizer(name, REAL[name])
    return Chat(tokenizer, FORMATS[detect_tool_call_format(tokenizer)]())


def decoded(chat, ids):
    return chat.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "name", mostly_slow([pytest.param(n, id=n) for n in OF_LLAMA_CPP if n not in NOT_CARRIED], quick=QUICK)
)
def test_calls_are_read_as_written_and_history_equals_the_rendered_template(name):
    result = measured.examine_template(name, REAL[name])
    assert result.works, (result.verdict, result.differs)


@pytest.mark.parametrize(
    "name", mostly_slow([pytest.param(n, id=n) for n in REAL if n not in NOT_CARRIED], quick=["GLM-4.6"])
)
def test_a_long_conversation_is_extended_as_if_all_turns_were_rendered(name):
    chat, draw = chat_of(name), random.Random(name)
    blocks = [draw.choice(BLOCKS) for _ in range(24)]
    few, everything = (extend_with(each, blocks, all_rendered=n) for each, n in ((chat, 2), (chat_of(name), 1000)))
    assert few == everything


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NOT_CARRIED))
def test_template_without_conversations_is_refused_in_one_line(name):
    with pytest.raises(PolicyError, match=NOT_CARRIED[name]) as raised:
        chat_of(name)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("Qwen-Qwen3-0.6B", "hermes"),
        ("Qwen3-Coder", "qwen3_coder"),
        ("GLM-4.7-Flash", "glm"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3"),
        ("deepseek-ai-DeepSeek-V3.1", "deepseek_v31"),
        ("Kimi-K2-Instruct", "kimi_k2"),
        ("openai-gpt-oss-120b", "harmony"),
        ("MiniMax-M2", "minimax_m2"),
        ("google-gemma-4-31B-it", "gemma4"),
        ("LFM2-8B-A1B", "lfm2"),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command_r"),
        ("meetkai-functionary-medium-v3.2", "functionary_v32"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3"),
        ("microsoft-Phi-3.5-mini-instruct", "hermes"),
    ],
)
def test_detected_format_is_that_of_rendered_calls(name, format):
    assert detect_tool_call_format(real_tokenizer(name, REAL[name])) == format


def test_turn_that_ends_with_the_next_role_is_extended_after_it():
    chat = chat_of("GLM-4.6")
    opened = chat.open([user("hi")], [TOOL])
    sampled = chat.write(assistant("", ToolCall(TOOL.name, '{"text": "a", "count": 1}')), [TOOL])
    assert decoded(chat, sampled[-1:]) == "<|observation|>"
    following = chat.extend(opened, sampled, [tool_result("b", call_id="call_0_0")])
    assert not following.opens_segment
    assert decoded(chat, following.ids).count("<|observation|>") == 1
    # the same call truncated before the end token: the delta adds it
    assert chat.extend(opened, sampled[:-1], [tool_result("b", call_id="call_0_0")]).ids == following.ids
    # the turn ends with the role of the user, but a tool answers: the template never renders that
    other = next(i for i in chat.stop_ids if decoded(chat, [i]) == "<|user|>")
    assert chat.extend(opened, (*sampled[:-1], other), [tool_result("b", call_id="call_0_0")]).opens_segment


@pytest.mark.slow
def test_moved_system_message_opens_a_segment_and_is_rendered_once():
    chat = chat_of("mistralai-Mistral-Nemo-Instruct-2407")
    context = chat.open([system("Be brief."), user("hi")], [])
    following = chat.extend(context, chat.write(assistant("yes"), []), [user("and?")])
    assert following.opens_segment
    assert decoded(chat, following.ids).count("Be brief.") == 1


@pytest.mark.slow
def test_malformed_call_is_answered_although_the_template_renders_no_call():
    for name in ("openai-gpt-oss-120b", "mistralai-Mistral-Nemo-Instruct-2407", "Qwen3-Coder"):
        chat = chat_of(name)
        broken = {"harmony": " to=functions.f<|channel|>commentary json<|message|>{", "mistral": "[TOOL_CALLS] [{"}
        text = broken.get(detect_tool_call_format(chat.tokenizer), "<tool_call>\n<function=f>")
        opened = chat.open([user("hi")], [TOOL])
        sampled = (*chat.encode(text), min(chat.stop_ids))
        assert chat.read(sampled, [TOOL], turn=0).malformed
        assert "no such call" in decoded(chat, chat.extend(opened, sampled, [tool_result("no such call")]).ids)


SECRETS = [
    "{{ messages.__class__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ self._TemplateReference__context }}",
]
HARM = ["{% for i in range(10 ** 9) %}{% endfor %}", "{{ raise_exception('no') }}", "{{ messages.append(1) or 1 / 0 }}"]


@pytest.mark.parametrize("source", HARM)
def test_template_that_loops_or_raises_is_refused_in_one_line(source):
    with pytest.raises(PolicyError, match="its chat template fails") as raised:
        Chat(tokenizer_with(source + CHATML), FORMATS["hermes"]())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("source", SECRETS)
def test_template_that_reads_secrets_is_refused_or_renders_none(source):
    refused = None
    try:
        chat = Chat(tokenizer_with(source + CHATML), FORMATS["hermes"]())
    except PolicyError as error:
        refused = str(error)
    if refused is not None:
        assert "\n" not in refused
        return
    plain = Chat(tokenizer_with(CHATML), FORMATS["hermes"]())
    assert chat.open([user("hi")], []).ids == plain.open([user("hi")], []).ids


@pytest.mark.parametrize("name", mostly_slow([pytest.param(n, id=n) for n in ALL], quick=["MiniMax-M2"]))
def test_every_turn_that_a_template_renders_is_parsed_as_it_was_rendered(name):
    result = parsed_turns.measure(name, ALL[name])
    if result.refused:
        assert name in (*NOT_CARRIED, "axolotl/command_a_rag", "axolotl/command_a_tool_use", "axolotl/llava")
        return
    if name in parsed_turns.CONTRADICTIONS:
        line, text, _ = parsed_turns.CONTRADICTIONS[name]
        assert text in REAL[name].splitlines()[line - 1]
        return
    assert not result.failures
    assert result.written == result.rendered > 0
