"""Properties of every format: written calls are read, and reading never fails."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.slow import mostly_slow
from whetstone.chat import FORMATS, ToolCall, ToolSpec, assistant, tool_result, user
from whetstone.chat.formats import Code, Llama3, Mistral, React, Tags


def spec(name, **properties):
    return ToolSpec(name, f"Does {name}.", {"type": "object", "properties": properties, "required": list(properties)})


PYTHON = spec("python", code={"type": "string"})
SEARCH = spec("search", query={"type": "string"})
ADD = spec("add", a={"type": "integer"}, b={"type": "integer"})
TOOLS = [PYTHON, SEARCH, ADD]
QUICK = ["code", "compact", "gemma4", "glm", "hermes", "kimi_k2", "llama3", "mistral", "react", "tags"]
EACH = pytest.mark.parametrize("name", mostly_slow(sorted(FORMATS), quick=QUICK))
SIGNS = [
    "<call>", "</call>", "<tool_call>", "</tool_call>", '{"name": "add", "parameters": {"a": 1}}', "{", "}", ";", "```",
    "```python\n", "\n```", "\n", "Action: add\n", "Action Input: {", "Observation:", "search[x]", "[TOOL_CALLS]", "[",
    "add[ARGS]{}", "<search>", "</search>", "<code>", "</code>", "</think>", "<|python_tag|>", "[" * 600, "text", '"',
]  # fmt: skip


@EACH
@given(st.lists(st.sampled_from(SIGNS) | st.text(max_size=3), max_size=8).map("".join))
def test_reading_any_text_succeeds(name, text):
    read = FORMATS[name]().read(text, TOOLS)
    assert read.role == "assistant"
    assert all(isinstance(call, ToolCall) for call in read.tool_calls)
    assert all(isinstance(json.loads(call.arguments), dict) for call in read.tool_calls if name in ("code", "tags"))


@EACH
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_written_call_is_read(name, text):
    written = FORMATS[name]()
    call = ToolCall("search", json.dumps({"query": text}))
    if name == "code":
        call = ToolCall("python", json.dumps({"code": f"{text}\n"}))
    try:
        sampled = written.write(assistant("", call), TOOLS)
    except ValueError:
        return  # the format refuses what it cannot express
    (read,) = written.read(sampled, TOOLS).tool_calls
    expected, actual = json.loads(call.arguments), json.loads(read.arguments)
    if name == "tags":
        expected = {key: value.strip() for key, value in expected.items()}
    assert (read.name, actual) == (call.name, expected)


@EACH
def test_text_without_a_call_is_an_answer(name):
    read = FORMATS[name]().read("The answer is 42.", TOOLS)
    assert (read.text, read.tool_calls, read.malformed) == ("The answer is 42.", (), ())


@EACH
def test_tools_are_described_and_no_tools_give_no_text(name):
    rendered = FORMATS[name]().describe(TOOLS)
    assert "python" in rendered
    assert FORMATS[name]().describe([]) == ""


@EACH
def test_tool_results_are_rendered_in_order_and_other_messages_stay(name):
    rendered = FORMATS[name]().results([user("first"), tool_result("one"), tool_result("two")])
    together = "".join(message.text for message in rendered)
    assert rendered[0] == user("first")
    assert together.index("one") < together.index("two")
    assert {message.role for message in rendered} == {"user"}


def calls(read):
    return [(call.name, json.loads(call.arguments)) for call in read.tool_calls]


def test_llama_calls_are_objects_at_the_start_of_the_turn():
    form = Llama3()
    text = '{"name": "add", "parameters": {"a": 1}}; {"name": "search", "parameters": {"query": "x"}}'
    assert calls(form.read(text, TOOLS)) == [("add", {"a": 1}), ("search", {"query": "x"})]
    assert calls(form.read(f"<|python_tag|>{text}", TOOLS)) == calls(form.read(text, TOOLS))
    assert form.read('{"colour": "red"}', TOOLS).text == '{"colour": "red"}'
    assert form.read('{"name": "add"}', TOOLS).malformed
    assert form.read('{"name": "add", "parameters": {"a": 1}} and so on', TOOLS).malformed
    assert form.write(assistant("", ToolCall("add", '{"a": 1}')), TOOLS) == '{"name": "add", "parameters": {"a": 1}}'


def test_mistral_calls_are_a_list_after_a_marker_or_named_separately():
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


def test_react_reads_the_last_action_before_an_invented_observation():
    form = React()
    text = 'Thought: add\nAction: search\nAction Input: x\nAction: add\nAction Input: {"a": 1}\nObservation: 99'
    assert calls(form.read(text, TOOLS)) == [("add", {"a": 1})]
    assert calls(form.read("Action: search[who wrote it]", TOOLS)) == [("search", {"query": "who wrote it"})]
    assert calls(form.read("Action: search\nAction Input: who", TOOLS)) == [("search", {"query": "who"})]
    assert form.read("Action: add\nAction Input: 1, 2", TOOLS).malformed
    assert form.read("Action: add", TOOLS).malformed
    assert form.stops == ("Observation:",)


def test_code_blocks_are_one_call_and_an_open_block_is_malformed():
    form = Code()
    text = "First\n```python\nx = 1\n```\nthen\n```py\nprint(x)\n```\n"
    assert calls(form.read(text, TOOLS)) == [("python", {"code": "x = 1\nprint(x)\n"})]
    assert form.read("```python\nx = 1", TOOLS).malformed == ("a block was not closed with ```",)
    assert form.read("```json\n{}\n```", TOOLS).tool_calls == ()


def test_tags_have_the_names_of_tools_and_code_blocks_call_python():
    form = Tags()
    assert calls(form.read("<think><search>no</search></think><search> who </search>x", TOOLS)) == [
        ("search", {"query": "who"})
    ]
    assert calls(form.read("<code>print(1)</code>", TOOLS)) == [("python", {"code": "print(1)"})]
    assert form.read("<search>who", TOOLS).malformed == ("a <search> is not closed with </search>",)
    assert form.read("<answer>42</answer>", TOOLS).tool_calls == ()
    assert form.results([tool_result("it")])[0].text == "<information>it</information>"


ODD = {
    "anything": {"a": True},
    "several types": {"a": {"type": ["string", "null"]}},
    "no mapping": [],
    "an enum that is none": {"a": {"enum": "x"}},
}


@EACH
@pytest.mark.parametrize("odd", ODD)
def test_tools_of_any_schema_are_described(name, odd):
    tool = ToolSpec("f", "", {"type": "object", "properties": ODD[odd], "required": None})
    format = FORMATS[name]()
    assert isinstance(format.describe([tool]), str)
    assert format.read("f(1) Action: f", [tool]).role == "assistant"


def test_several_types_are_described_in_one_line():
    several = ToolSpec(
        "f", "", {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}
    )
    assert FORMATS["compact"]().describe([several]).startswith("<call>f(a: str|None)</call>")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "a </tool_call> b"),
        ("hermes", "<think>x</think>"),
        ("llama3", "a <|python_tag|> b"),
        ("mistral", "[TOOL_CALLS] [{}]"),
        ("react", "Observation: 3\nAction: x"),
    ],
)
def test_arguments_can_contain_markers_of_formats_that_write_json(name, text):
    written, call = FORMATS[name](), ToolCall("search", json.dumps({"query": text}))
    (read,) = written.read(written.write(assistant("", call), TOOLS), TOOLS).tool_calls
    assert json.loads(read.arguments) == {"query": text}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("code", ToolCall("search", '{"query": "x"}')),  # a block always runs the same tool
        ("tags", ToolCall("add", '{"a": "x"}')),  # has another parameter than a text
        ("tags", ToolCall("python", '{"code": "</think> x"}')),  # the text before it is a thought
        ("compact", ToolCall("add", '{"a": NaN, "b": 1}')),
        ("compact", ToolCall("add", '{"not a name": 1}')),
        ("compact", ToolCall("with spaces", '{"query": "x"}')),
    ],
)
def test_ambiguous_calls_are_not_written(name, call):
    with pytest.raises(ValueError, match=r"call|block|not JSON"):
        FORMATS[name]().write(assistant("", call), TOOLS)


@pytest.mark.parametrize("tool", ["server.search", "web-search", "suche_für"])
def test_compact_call_can_have_any_name_of_one_word(tool):
    call, tools = ToolCall(tool, '{"query": "x (y)"}'), [spec(tool, query={"type": "string"})]
    written = FORMATS["compact"]().write(assistant("", call), tools)
    assert FORMATS["compact"]().read(written, tools).tool_calls == (call,)


@EACH
@pytest.mark.parametrize(
    "arguments", ["[" * 5000, '{"query":' * 3000, "{", ""], ids=["list", "object", "open", "empty"]
)
def test_unreadable_arguments_are_not_written(name, arguments):
    with pytest.raises(ValueError, match=""):
        FORMATS[name]().write(assistant("", ToolCall("python", arguments)), TOOLS)


@pytest.mark.parametrize("depth", [500, 900, 990, 5000])
def test_deeply_nested_call_is_a_call_or_malformed(depth):
    deep = '{"name": "add", "arguments": ' + "[" * depth + "]" * depth + "}"
    for name, text in (
        ("hermes", f"<tool_call>{deep}</tool_call>"),
        ("mistral", f"[TOOL_CALLS] [{deep}]"),
        ("llama3", deep),
    ):
        read = FORMATS[name]().read(text, TOOLS)
        assert bool(read.tool_calls) != bool(read.malformed)


def test_compact_call_of_an_unknown_tool_is_written_unchanged():
    read = FORMATS["compact"]().read("<call>f(*a, **b)</call>", TOOLS)
    assert FORMATS["compact"]().write(read, TOOLS) == "<call>f(*a, **b)</call>"


def test_tool_named_code_is_called():
    tools = [PYTHON, spec("code", text={"type": "string"})]
    (read,) = Tags().read("<code>x</code>", tools).tool_calls
    assert read == ToolCall("code", '{"text": "x"}')
