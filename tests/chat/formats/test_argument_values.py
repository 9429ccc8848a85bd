"""Values of arguments: text between tags is typed by the whole schema, and formats keep the model's characters."""

import asyncio
import json
from enum import StrEnum

import pytest

from whetstone.chat import FORMATS, ToolCall, ToolSpec, assistant
from whetstone.chat.formats.json_call import parse_strict_json
from whetstone.chat.formats.text_values import declared_types, parse_value
from whetstone.tools.toolset import Toolset

TAGGED = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "hunyuan": (
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a"
        "</arg_key:opensource>\n<arg_value:opensource>{}</arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>"
    ),
    "seed": "<seed:tool_call>\n<function=f>\n<parameter=a>{}</parameter>\n</function>\n</seed:tool_call>",
    "minicpm": '<function name="f"><param name="a">{}</param></function>',
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">{}</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "minimax_m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<a>{}]<]minimax[>[</a>'
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
    ),
    "muse": (
        '<atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="a">{}</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls>"
    ),
}
DEFS = {"Word": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}
STRINGS = {
    "anyOf": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "oneOf": {"oneOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]},
    "allOf": {"allOf": [{"type": "string"}, {"minLength": 1}]},
    "$ref": {"$ref": "#/$defs/Word"},
    "list of types": {"type": ["string", "null"]},
    "enum": {"enum": ["12345", "true", "1e5", "3.10", "[1, 2]", '{"a": 1}', "0x10", '"exact phrase"']},
    "const": {"const": "12345"},
    "nullable": {"type": "string", "nullable": True},
    "nested": {"anyOf": [{"allOf": [{"$ref": "#/$defs/Word"}]}, {"type": "null"}]},
}
TEXTS = ["12345", "true", "1e5", "3.10", "[1, 2]", '{"a": 1}', "0x10", '"exact phrase"', "1e999", "NaN"]


def tool_of(schema):
    return ToolSpec("f", "", {"type": "object", "properties": {"a": schema}, "$defs": DEFS})


def read_value(format, text, schema):
    message = FORMATS[format]().read(TAGGED[format].format(text), [tool_of(schema)])
    assert not message.malformed
    return json.loads(message.tool_calls[0].arguments)["a"]


@pytest.mark.parametrize("format", TAGGED)
@pytest.mark.parametrize("kind", STRINGS)
def test_text_of_a_string_stays_as_it_is_however_the_schema_declares_it(format, kind):
    for text in TEXTS:
        value = read_value(format, text, STRINGS[kind])
        assert (type(value), value) == (str, text)


@pytest.mark.parametrize("format", TAGGED)
def test_null_is_null_only_if_the_schema_declares_it(format):
    assert read_value(format, "null", STRINGS["anyOf"]) is None
    assert read_value(format, "null", {"type": "string"}) == "null"


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("42", ["integer", "string"], 42),
        ("4x", ["integer", "string"], "4x"),
        ("0.5", ["number", "string"], 0.5),
        ("true", ["boolean", "string"], True),
        ("True", ["boolean", "string"], "True"),
        ("True", ["boolean"], True),
        ("[1]", ["array", "string"], [1]),
        ("{'a': 1}", ["object"], {"a": 1}),
        ("None", ["integer", "null"], None),
        ("12", ["string", "null"], "12"),
        ("abc", ["integer"], "abc"),
    ],
)
def test_text_is_another_type_only_if_it_is_json_of_a_declared_type(text, types, value):
    result = parse_value(text, {"type": types}, {})
    assert (type(result), result) == (type(value), value)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", '{"a": 1, "a": 2}', "[1e999]"])
def test_text_that_strict_json_does_not_have_is_an_error_for_other_types(text):
    with pytest.raises(ValueError, match=r"JSON|repeated|finite"):
        parse_value(text, {"type": ["number", "object", "array"]}, {})


def test_types_of_combined_schemas():
    assert declared_types({"allOf": [{"type": ["integer", "string"]}, {"type": "number"}]}, {}) == {"integer"}
    assert declared_types({"anyOf": [{"type": "string"}, {}]}, {}) is None
    assert declared_types({"$ref": "#/$defs/Loop"}, {"$defs": DEFS}) is None
    assert declared_types(True, {}) is None
    assert declared_types({"enum": [1, "a", None]}, {}) == {"integer", "string", "null"}


class Color(StrEnum):
    RED = "1"


def test_python_tools_receive_the_text_that_a_model_writes():
    received = []

    def f(a: str | None = None, color: Color = Color.RED) -> str:
        received.append((a, color))
        return "ok"

    tools = Toolset([f])
    text = (
        TAGGED["qwen3_coder"].format("12345").replace("</function>", "<parameter=color>\n1\n</parameter>\n</function>")
    )
    (call,) = FORMATS["qwen3_coder"]().read(text, tools.specs).tool_calls
    asyncio.run(tools.call(call))
    assert received == [("12345", Color.RED)]


@pytest.mark.parametrize("format", sorted(TAGGED.keys() - {"minimax_m3"}))
def test_a_string_is_written_as_the_template_of_the_family_writes_it(format):
    call = ToolCall("f", '{"a": "12345"}')
    assert FORMATS[format]().write(assistant("", call), [tool_of(STRINGS["anyOf"])]) == TAGGED[format].format("12345")


@pytest.mark.parametrize("format", sorted(TAGGED.keys() - {"minimax_m3"}))
def test_value_can_contain_its_closing_tags(format):
    before, _, after = TAGGED[format].partition("{}")
    closing = after.strip().partition(">")[0] + ">"
    text = f"a {closing} b"
    assert read_value(format, text, {"type": "string"}) == text
    assert before


def test_cdata_is_removed_and_added_as_the_template_of_minicpm_does():
    code = "if a < b:\n    x()\n"
    text = f'<function name="f"><param name="a"><![CDATA[{code}]]></param></function>'
    form, tools = FORMATS["minicpm"](), [tool_of({"type": "string"})]
    (call,) = form.read(text, tools).tool_calls
    assert json.loads(call.arguments) == {"a": code}
    assert form.write(assistant("", call), tools) == text


def test_values_of_minimax_m3_are_typed_at_every_level():
    schema = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "note": STRINGS["anyOf"]},
        "additionalProperties": {"type": "string"},
    }
    arguments = {"a": {"year": "2026", "tags": ["1", "x"], "note": ""}}
    form = FORMATS["minimax_m3"]()
    written = form.write(assistant("", ToolCall("f", json.dumps(arguments))), [tool_of(schema)])
    (call,) = form.read(written, [tool_of(schema)]).tool_calls
    assert json.loads(call.arguments) == arguments


JSON_CALLS = {
    "hermes": '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>',
    "tool_calls": '<tool_calls>[{{"name": "f", "arguments": {}}}]</tool_calls>',
    "apertus": '<|tools_prefix|>[{{"f": {}}}]<|tools_suffix|>',
    "llama3": '{{"name": "f", "parameters": {}}}',
    "mistral": "[TOOL_CALLS]f[ARGS]{}",
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "deepseek_v31": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    "harmony": " to=functions.f<|channel|>commentary json<|message|>{}",
    "functionary_v32": ">>>f\n{}",
}


@pytest.mark.parametrize("format", JSON_CALLS)
def test_arguments_are_the_text_of_the_model(format):
    body = '{"a": "\\u4f60 你",  "b": 3.14159265358979323846, "c": 1.0}'
    (call,) = FORMATS[format]().read(JSON_CALLS[format].format(body), []).tool_calls
    assert call.arguments == body


@pytest.mark.parametrize("format", JSON_CALLS)
@pytest.mark.parametrize(
    "body", ['{"a": NaN}', '{"a": {"b": [Infinity]}}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[1]", "null", '{"a": 1} x']
)
def test_arguments_that_are_not_a_strict_object_are_malformed(format, body):
    message = FORMATS[format]().read(JSON_CALLS[format].format(body), [])
    assert message.malformed or (format == "mistral" and message.text == " x")  # text may follow a call
    if body != '{"a": 1} x':
        assert not message.tool_calls


def test_json_is_refused_from_the_same_depth_in_every_python():
    assert parse_strict_json("[" * 500 + "]" * 500)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_strict_json("[" * 501 + "]" * 501)
    assert parse_strict_json(f'["{"[" * 600}"{", []" * 600}]')
