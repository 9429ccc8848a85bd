"""What holds for every format: what was written is read, and nothing a model says makes reading fail."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.chat import FORMATS, ToolCall, ToolSpec, assistant, tool_result, user
from whetstone.chat.formats import Code, Llama3, Mistral, React, Tags


def spec(name, **properties):
    return ToolSpec(name, f"Does {name}.", {"type": "object", "properties": properties, "required": list(properties)})


PYTHON = spec("python", code={"type": "string"})
SEARCH = spec("search", query={"type": "string"})
ADD = spec("add", a={"type": "integer"}, b={"type": "integer"})
TOOLS = [PYTHON, SEARCH, ADD]
EACH = pytest.mark.parametrize("name", sorted(FORMATS))
SIGNS = [
    "<call>", "</call>", "<tool_call>", "</tool_call>", '{"name": "add", "parameters": {"a": 1}}', "{", "}", ";", "```",
    "```python\n", "\n```", "\n", "Action: add\n", "Action Input: {", "Observation:", "search[x]", "[TOOL_CALLS]", "[",
    "add[ARGS]{}", "<search>", "</search>", "<code>", "</code>", "</think>", "<|python_tag|>", "[" * 600, "text", '"',
]  # fmt: skip


@EACH
@given(st.lists(st.sampled_from(SIGNS) | st.text(max_size=3), max_size=8).map("".join))
def test_reading_never_fails(name, text):
    read = FORMATS[name]().read(text, TOOLS)
    assert read.role == "assistant"
    assert all(isinstance(call, ToolCall) for call in read.tool_calls)
    assert all(isinstance(json.loads(call.arguments), dict) for call in read.tool_calls if name in ("code", "tags"))


@EACH
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_a_call_that_was_written_is_read(name, text):
    written = FORMATS[name]()
    call = ToolCall("search", json.dumps({"query": text}))
    if name == "code":
        call = ToolCall("python", json.dumps({"code": f"{text}\n"}))
    try:
        said = written.write(assistant("", call), TOOLS)
    except ValueError:
        return  # the format says that it cannot express this
    (read,) = written.read(said, TOOLS).tool_calls
    given, got = json.loads(call.arguments), json.loads(read.arguments)
    if name == "tags":
        given = {key: value.strip() for key, value in given.items()}
    assert (read.name, got) == (call.name, given)


@EACH
def test_what_is_said_without_a_call_is_an_answer(name):
    read = FORMATS[name]().read("The answer is 42.", TOOLS)
    assert (read.text, read.tool_calls, read.malformed) == ("The answer is 42.", (), ())


@EACH
def test_tools_are_described_and_none_are_nothing(name):
    shown = FORMATS[name]().describe(TOOLS)
    assert "python" in shown
    assert FORMATS[name]().describe([]) == ""


@EACH
def test_answers_of_tools_are_shown_in_order_and_others_stay(name):
    shown = FORMATS[name]().results([user("first"), tool_result("one"), tool_result("two")])
    together = "".join(message.text for message in shown)
    assert shown[0] == user("first")
    assert together.index("one") < together.index("two")
    assert {message.role for message in shown} == {"user"}


def calls(read):
    return [(call.name, json.loads(call.arguments)) for call in read.tool_calls]


def test_llama_calls_are_objects_that_begin_the_turn():
    form = Llama3()
    text = '{"name": "add", "parameters": {"a": 1}}; {"name": "search", "parameters": {"query": "x"}}'
    assert calls(form.read(text, TOOLS)) == [("add", {"a": 1}), ("search", {"query": "x"})]
    assert calls(form.read(f"<|python_tag|>{text}", TOOLS)) == calls(form.read(text, TOOLS))
    assert form.read('{"colour": "red"}', TOOLS).text == '{"colour": "red"}'
    assert form.read('{"name": "add"}', TOOLS).malformed
    assert form.read('{"name": "add", "parameters": {"a": 1}} and so on', TOOLS).malformed
    assert form.write(assistant("", ToolCall("add", '{"a": 1}')), TOOLS) == '{"name": "add", "parameters": {"a": 1}}'


def test_mistral_calls_are_a_list_behind_a_sign_or_named_one_by_one():
    form = Mistral()
    assert calls(form.read('Well. [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', TOOLS)) == [("add", {"a": 1})]
    assert calls(form.read('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]search[ARGS]{"query": "x"}', TOOLS)) == [
        ("add", {"a": 1}),
        ("search", {"query": "x"}),
    ]
    assert form.read("[TOOL_CALLS] nonsense", TOOLS).malformed
    assert form.results([tool_result("1"), tool_result("2")])[0].text == (
        '[TOOL_RESULTS] {"content": "1"}[/TOOL_RESULTS][TOOL_RESULTS] {"content": "2"}[/TOOL_RESULTS]'
    )


def test_react_takes_the_last_action_before_an_observation_it_makes_up():
    form = React()
    text = 'Thought: add\nAction: search\nAction Input: x\nAction: add\nAction Input: {"a": 1}\nObservation: 99'
    assert calls(form.read(text, TOOLS)) == [("add", {"a": 1})]
    assert calls(form.read("Action: search[who wrote it]", TOOLS)) == [("search", {"query": "who wrote it"})]
    assert calls(form.read("Action: search\nAction Input: who", TOOLS)) == [("search", {"query": "who"})]
    assert form.read("Action: add\nAction Input: 1, 2", TOOLS).malformed
    assert form.read("Action: add", TOOLS).malformed
    assert form.stops == ("Observation:",)


def test_code_in_several_blocks_is_one_call_and_an_open_one_was_cut_off():
    form = Code()
    text = "First\n```python\nx = 1\n```\nthen\n```py\nprint(x)\n```\n"
    assert calls(form.read(text, TOOLS)) == [("python", {"code": "x = 1\nprint(x)\n"})]
    assert form.read("```python\nx = 1", TOOLS).malformed == ("a block was not closed with ```",)
    assert form.read("```json\n{}\n```", TOOLS).tool_calls == ()


def test_tags_are_named_after_tools_and_code_stands_for_python():
    form = Tags()
    assert calls(form.read("<think><search>no</search></think><search> who </search>x", TOOLS)) == [
        ("search", {"query": "who"})
    ]
    assert calls(form.read("<code>print(1)</code>", TOOLS)) == [("python", {"code": "print(1)"})]
    assert form.read("<search>who", TOOLS).malformed == ("a <search> was not closed with </search>",)
    assert form.read("<answer>42</answer>", TOOLS).tool_calls == ()
    assert form.results([tool_result("it")])[0].text == "<information>it</information>"
