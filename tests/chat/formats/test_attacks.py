"""Turns that try to break a parser: long repetitions, calls cut before another call, names and schemas of all kinds."""

import json
import re
from types import SimpleNamespace

import pytest

from whetstone.chat import FORMATS, ToolCall, ToolSpec, assistant
from whetstone.chat.formats import Parameters
from whetstone.chat.formats.json_call import first_repeated, parse_strict_json
from whetstone.chat.formats.scanning import scan_turn
from whetstone.chat.formats.text_values import declared_types, member_schema, resolve_reference
from whetstone.chat.thoughts import read_after_thought
from whetstone.chat.turn_ends import end_pattern
from whetstone.serving.detokenizer import StreamedText

TOOL = ToolSpec("look_up", "", {"type": "object", "properties": {"query": {"type": "string"}}})
TAGGED = sorted(name for name in FORMATS if isinstance(FORMATS[name](), Parameters))
COUNTED = sorted(FORMATS.keys() - {"code", "compact", "react", "tags"})


def written(name, query, tool="look_up"):
    return FORMATS[name]().write(assistant("", ToolCall(tool, json.dumps({"query": query}))), [TOOL])


def queries(message):
    return [json.loads(call.arguments)["query"] for call in message.tool_calls]


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("between", ["", "\n", " Again: "])
@pytest.mark.parametrize("closed", [False, True])
def test_call_truncated_in_a_value_does_not_contain_the_next_call(name, between, closed):
    first, second = written(name, "first"), written(name, "second")
    first = first.rstrip()[:-1] if closed else first[: first.index("first") + 3]
    message = FORMATS[name]().read(f"{first}{between}{second}", [TOOL])
    complete = closed and queries(message) == ["first", "second"]  # the cut tag follows the call
    assert complete or (queries(message) == ["second"] and message.malformed)


@pytest.mark.parametrize("name", TAGGED)
def test_value_can_contain_markers_that_open_no_call(name):
    for query in ("".join(FORMATS[name]().markers[:2]), "".join(FORMATS[name]().markers[-3:]), "a\n" * 50):
        try:
            text = written(name, query)
        except ValueError:
            continue  # a format in which all markers are tokens
        message = FORMATS[name]().read(text, [TOOL])
        assert (queries(message), message.malformed) == ([query], ())


def test_a_raw_string_does_not_contain_the_next_call():
    first, second = written("lfm25", "first"), written("lfm25", "second")
    message = FORMATS["lfm25"]().read(f"{first[:-1]} {second}", [TOOL])
    assert (queries(message), bool(message.malformed)) == (["second"], True)


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("tool", ["a.b", "a-b", "a/b", "ns:tool", "ns::tool", "é", "look_up:0", "all", "two words"])
def test_a_tool_of_any_name_is_called_or_the_format_rejects_it(name, tool):
    spec = ToolSpec(tool, "", TOOL.parameters)
    form = FORMATS[name]()
    call = ToolCall(tool, '{"query": "x"}')
    try:
        text = form.write(assistant("", call), [spec])
    except ValueError:
        return
    message = form.read(text, [spec])
    assert ([each.name for each in message.tool_calls], queries(message)) == ([tool], ["x"])


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v31", "functionary_v31", "kimi_k2", "plamo3", "solar"])
def test_a_namespace_with_colons_is_part_of_a_name(name):
    call = ToolCall("ns::tool", '{"query": "x"}')
    (read,) = FORMATS[name]().read(FORMATS[name]().write(assistant("", call), []), []).tool_calls
    assert (read.name, read.arguments) == (call.name, call.arguments)


class CountedPattern:
    """Pattern that counts how often a text is searched."""

    def __init__(self, pattern):
        self.pattern, self.count = pattern, 0

    def search(self, *arguments):
        self.count += 1
        return self.pattern.search(*arguments)


def test_a_turn_with_many_malformed_blocks_is_reported_and_not_read_further():
    opening = CountedPattern(re.compile("<c>"))
    message = scan_turn("<c>" * 5000 + "end", opening, lambda match: (["no call"], match.end()))
    assert opening.count < 50
    assert "not read further" in message.malformed[-1]
    valid = scan_turn("<c>" * 5000, opening, lambda match: ([ToolCall("f", "{}")], match.end()))
    assert (len(valid.tool_calls), valid.malformed) == (5000, ())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_repeated_markers_and_openings_end_and_are_never_calls(name):
    form = FORMATS[name]()
    for piece in (*form.markers, "</think>", "[f(", "f.", '{"a":', ",", "to=", "- ", "f()."):
        for text in (piece * 2000, f"[{piece * 2000}(a=1)]"):
            message = form.read(text, [TOOL])
            assert all(call.name not in ("look_up", "") for call in message.tool_calls)


def test_a_deep_chain_of_names_is_malformed():
    text = "<|tool_call_start|>[" + "f()." * 900 + "f(a=1)]<|tool_call_end|>"
    assert FORMATS["lfm2"]().read(text, []).malformed


@pytest.mark.parametrize("name", ["lfm2", "lfm25", "llama4", "olmo3"])
@pytest.mark.parametrize("word", ["get-weather", "from", "ns:tool", "a/b", "0x", "ﬁ", "a.b-c", "$x", "_word0_"])
def test_names_and_keys_in_python_syntax_can_be_any_word(name, word):
    arguments = {word: "it's from(a=1), get-weather(from='x') _word0_ \"", "other": [{"from": "-"}]}
    if name == "lfm25":
        arguments[word] = "from(a=1) get-weather _word0_"
    for tool in (word, "plain"):
        call = ToolCall(tool, json.dumps(arguments))
        spec = ToolSpec(tool, "", {"type": "object", "properties": {word: {"type": "string"}}})
        form = FORMATS[name]()
        message = form.read(form.write(assistant("", call), [spec]), [spec])
        assert [(each.name, json.loads(each.arguments)) for each in message.tool_calls] == [(tool, arguments)]


@pytest.mark.parametrize("quote", ["'", '"', "'''", '"""'])
def test_strings_in_python_syntax_keep_words_that_look_like_calls(quote):
    text = f"[f(a-b={quote}g-h(from=1) is-not(x) {quote}, c='x-y(')]"
    (call,) = FORMATS["llama4"]().read(text, [ToolSpec("f", "", {"type": "object"})]).tool_calls
    assert json.loads(call.arguments) == {"a-b": "g-h(from=1) is-not(x) ", "c": "x-y("}


@pytest.mark.parametrize("signs", [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_a_call_in_a_thought_that_is_not_closed_is_reported_and_not_executed(signs):
    form, (opening, closing) = FORMATS["hermes"](), signs

    def read(text):
        return read_after_thought(text, closing, lambda rest: form.read(rest, [TOOL]), opening=opening)[1]

    text = f"{opening}I could write {written('hermes', 'x')}"
    message = read(text)
    assert (message.tool_calls, bool(message.malformed)) == ((), True)
    assert queries(read(f"{text}{closing}{written('hermes', 'y')}")) == ["y"]
    assert queries(read(f"{opening}{closing}{written('hermes', 'y')}")) == ["y"]
    assert not read(f"{opening}I think").malformed


def test_a_code_block_of_json_is_an_answer_unless_it_starts_with_a_call():
    form, answer = FORMATS["xlam"](), 'Here:\n```json\n{"a": 1}\n```'
    assert form.read(answer, [TOOL]) == assistant(answer)
    assert form.read(answer.replace('"a"', '"name"'), [TOOL]).malformed


def test_the_first_repeated_key_is_named():
    keys = [str(index) for index in range(30_000)]
    assert first_repeated([*keys, "7", "5"]) == "5"
    assert first_repeated(keys) == ""
    with pytest.raises(ValueError, match='"29999" is repeated'):
        parse_strict_json("{" + ",".join(f'"{key}": 1' for key in [*keys, "29999"]) + "}")


def test_an_object_of_many_keys_is_read_by_gemma():
    arguments = {f"k{index}": index for index in range(5000)}
    form = FORMATS["gemma4"]()
    (call,) = form.read(form.write(assistant("", ToolCall("f", json.dumps(arguments))), []), []).tool_calls
    assert json.loads(call.arguments) == arguments


def test_whitespace_before_the_end_of_a_turn_is_searched_once():
    pattern = end_pattern("<|end|>")
    assert pattern.search(" " * 20_000 + "x") is None
    text = "answer \n <|end|> "
    assert text[: pattern.search(text).start()] == "answer"


ROOT = {
    "type": "object",
    "$defs": {"a b": {"type": "string"}, "T": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    "allOf": [{"properties": {"inherited": {"type": "string"}}}],
    "patternProperties": {"^s_": {"type": "string"}, "[": {}},
    "additionalProperties": {"type": ["string", "null"]},
    "properties": {"own": {"$ref": "#/$defs/a%20b"}, "part": {"$ref": "#/$defs/T/anyOf/1"}},
}


@pytest.mark.parametrize("name", [*TAGGED, "minimax_m3"])
@pytest.mark.parametrize("key", ["own", "part", "inherited", "s_key", "other"])
def test_a_string_is_declared_by_every_keyword_of_members(name, key):
    tool = ToolSpec("f", "", ROOT)
    form = FORMATS[name]()
    call = ToolCall("f", json.dumps({key: "12345"}))
    text = form.write(assistant("", call), [tool])
    (read,) = form.read(text, [tool]).tool_calls
    assert ('"12345"' in text, json.loads(read.arguments)) == (False, {key: "12345"})


def test_items_of_tuples_have_schemas_of_their_own():
    tuples = {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "boolean"}}
    older = {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": {"type": "boolean"}}
    for schema in (tuples, older):
        types = [member_schema(schema, "item", {}, index) for index in range(3)]
        assert types == [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]
    tool = ToolSpec("f", "", {"type": "object", "properties": {"a": {"type": "array", **tuples}}})
    form = FORMATS["minimax_m3"]()
    call = ToolCall("f", '{"a": ["1", 1, true]}')
    (read,) = form.read(form.write(assistant("", call), [tool]), [tool]).tool_calls
    assert json.loads(read.arguments) == json.loads(call.arguments)


def test_pointers_can_be_percent_encoded_and_contain_list_indices():
    assert resolve_reference("#/$defs/a%20b", ROOT) == {"type": "string"}
    assert resolve_reference("#/$defs/T/anyOf/1", ROOT) == {"type": "string"}
    assert resolve_reference("#/$defs/T/anyOf/9", ROOT) is None


def test_functionary_reports_a_call_without_a_name_before_and_after_a_valid_one():
    valid, broken = '>>>look_up\n{"query": "x"}', '>>>\n{"query": "y"}'
    for text in (valid + broken, broken + valid):
        message = FORMATS["functionary_v32"]().read(text, [TOOL])
        assert (queries(message), bool(message.malformed), message.text) == (["x"], True, "")
    assert FORMATS["functionary_v32"]().read(broken, [TOOL]).malformed


def test_xlam_reads_every_list_of_a_turn():
    form = FORMATS["xlam"]()
    one, two = '[{"name": "look_up", "arguments": {"query": "x"}}]', '{"name": "look_up", "arguments": {"query": "y"}}'
    assert queries(form.read(f"{one}\n{two}", [TOOL])) == ["x", "y"]
    message = form.read(f'[{{"name": "", "arguments": {{}}}}] {two}', [TOOL])
    assert (queries(message), len(message.malformed)) == (["y"], 1)
    assert queries(form.read(f"{one} Then {two} and {one}", [TOOL])) == ["x", "y", "x"]
    assert form.read(f"{one} and {two[:-9]}", [TOOL]).malformed
    assert form.read('[1, 2] {"a": 1}', [TOOL]).text == '[1, 2] {"a": 1}'


def test_definitions_that_refer_to_each_other_many_times_are_resolved():
    definitions = {f"D{level}": {"anyOf": [{"$ref": f"#/$defs/D{level + 1}"}] * 4} for level in range(19)}
    root = {"$defs": {**definitions, "D19": {"type": "string", "properties": {"a": {"type": "null"}}}}}
    assert declared_types({"$ref": "#/$defs/D0"}, {"$defs": {**root["$defs"], "D4": {"type": "string"}}}) == {"string"}
    assert member_schema({"$ref": "#/$defs/D10"}, "a", root) in ({"type": "null"}, {})
    loop = {"$defs": {"L": {"anyOf": [{"$ref": "#/$defs/L"}, {"$ref": "#/$defs/L"}, {"type": "string"}]}}}
    assert declared_types({"$ref": "#/$defs/L"}, loop) in ({"string"}, None)


class CharacterTokenizer:
    """Tokenizer whose tokens are code points."""

    def decode(self, ids, skip_special_tokens=False):
        return "".join(map(chr, ids))


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"code", "llama3", "llama4", "xlam", "functionary_v32"}))
@pytest.mark.parametrize("step", [1, 2, 7])
def test_calls_are_never_streamed_for_any_division_into_tokens(name, step):
    form = FORMATS[name]()
    opening = form.write(assistant("", ToolCall("look_up", '{"query": "x"}')), [TOOL]).partition("look_up")[0].strip()
    for before in ("", "a < b [1] `x` {2} ", "Text\n\n"):
        text = before + written(name, "x")
        pieces = []
        chat = SimpleNamespace(format=form, frame_signs=(), tokenizer=CharacterTokenizer())
        request = SimpleNamespace(tools=(TOOL,), prompt=None, stop=(), one_call=False)
        stream = StreamedText(chat, request, pieces.append, hidden=False, calls="" if name == "tags" else opening)
        for count in range(step, len(text) + step, step):
            stream.on_tokens([ord(character) for character in text[:count]])
        assert before.startswith("".join(pieces).rstrip())
