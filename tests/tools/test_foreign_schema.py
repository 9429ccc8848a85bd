"""Schemas of other people: nothing is fetched, everything ends, and they judge as jsonschema does."""

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.chat import ToolCall, ToolSpec
from whetstone.errors import RecipeError
from whetstone.tools import Toolset
from whetstone.tools.foreign_schema import SECONDS, UndecidedError, checked_schema, problems
from whetstone.tools.json_schema_tools import tool_from_schema


class Asked(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"type": "string"}')

    def log_message(self, *_):
        pass


@pytest.fixture
def elsewhere():
    with HTTPServer(("127.0.0.1", 0), Asked) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        Asked.asked.clear()
        yield f"http://127.0.0.1:{server.server_port}/schema"
        server.shutdown()


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("deep", [False, True])
def test_what_leads_out_of_a_schema_is_refused_and_nothing_is_asked(elsewhere, tmp_path, key, deep):
    (tmp_path / "secret.json").write_text('{"const": "secret"}')
    for place in (elsewhere, f"file://{tmp_path}/secret.json", "other.json", "//host/x"):
        leads = {key: place}
        schema = {"properties": {"a": {"anyOf": [leads]} if deep else leads}}
        with pytest.raises(RecipeError, match=r"the schema of t: .*leads out of it, and nothing is fetched"):
            tool_from_schema(ToolSpec("t", "", schema), None)
    assert Asked.asked == []


def test_a_name_of_itself_does_not_lead_out(elsewhere):
    """Behind an `$id` somewhere else a plain reference would be asked for there."""
    schema = checked_schema(
        {"$id": elsewhere, "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}}
    )
    assert problems(schema, {"a": 1}) == []
    assert problems(schema, {"a": "x"}) == ["a: 'x' is not of type 'integer'"]
    with pytest.raises(UndecidedError, match=r"cannot be applied: .*does not exist"):
        problems(checked_schema({"$id": elsewhere, "properties": {"a": {"$ref": "#/$defs/y"}}}), {"a": 1})
    assert Asked.asked == []


BOMB = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 4} for i in range(20)} | {"d20": {"type": "string"}}
ENDLESS = {
    "pattern": {"properties": {"a": {"pattern": "^(a+)+$"}}},
    "patternProperties": {"patternProperties": {"^(a+)+$": {}}},
    "additionalProperties": {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
    "growing": {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": BOMB},
    "itself": {"properties": {"a": {"$ref": "#/properties/a"}}},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_ended(name):
    """Some of them an engine decides at once that looks at what is needed; that is as good."""
    said = "a" * 40 + "b"
    began = time.monotonic()
    try:
        problems(checked_schema(ENDLESS[name]), {"a": said, said: 1})
        assert name not in ("growing", "itself")
    except UndecidedError:
        pass
    assert time.monotonic() - began < 20 * SECONDS


def test_the_others_go_on_meanwhile_and_the_model_reads_why():
    async def answer(arguments):
        return "fine"

    async def both():
        toolset = Toolset([tool_from_schema(ToolSpec("t", "", ENDLESS["growing"]), answer)])
        asked = asyncio.create_task(toolset.call(ToolCall("t", '{"a": "x"}')))
        beats = 0
        while not asked.done():
            await asyncio.sleep(0.01)
            beats += 1
        return beats, await asked

    beats, answered = asyncio.run(both())
    assert beats > 3
    assert answered.record.outcome == "invalid_arguments"
    assert "cannot be told: its schema is not done with them in 0.5 s" in answered.text


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": 5}, "is no JSON Schema: 5 is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, "is no JSON Schema: missing"),
        ({"properties": []}, "is no JSON Schema"),
        ({"unevaluatedProperties": False, "patternProperties": {"x": {}}}, "unevaluatedProperties beside"),
        ({"description": "x" * 300_000}, "300"),
        (True, "it is no mapping"),
        ({"$schema": 34}, "is no JSON Schema"),
        ("x", "it is no mapping"),
        ({"pattern": "a{99999999}"}, "repeats without bounds"),
        ({"pattern": "((a{999}){999}){999}"}, "repeats without bounds"),
        ({"pattern": "([^)]{999}){999}"}, "repeats without bounds"),
        ({"patternProperties": {"(ab|c){9999999}": {}}}, "repeats without bounds"),
    ],
)
def test_what_is_no_schema_is_said(schema, said):
    with pytest.raises(ValueError, match=said):
        checked_schema(schema)


@pytest.mark.parametrize(
    "pattern",
    [
        "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$",
        r"^\\{999}[(]{999}\({999}$",
        "^[a-z]{1,63}([.][a-z]{1,63}){0,10}$",
    ],
)
def test_patterns_people_write_are_taken(pattern):
    assert checked_schema({"pattern": pattern})


def test_a_schema_deeper_than_anybody_needs_is_none():
    schema = {"type": "string"}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(ValueError, match="is no JSON Schema"):
        checked_schema(schema)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("abx1", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "xa", "x1"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = st.sampled_from(["string", "integer", "number", "object", "array", "null", "boolean"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "pattern": st.sampled_from(["^a", "b+$", "x"]),
            "minimum": st.integers(-5, 5),
            "required": st.lists(st.sampled_from(["a", "b"]), unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^x", "a$"]), inner, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "propertyNames": inner,
        },
    ),
    max_leaves=8,
)


@given(SCHEMAS, VALUES)
def test_they_judge_as_the_library_does(schema, value):
    theirs = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (not problems(checked_schema(schema), value)) == theirs


def test_what_a_server_says_of_a_tool_is_only_text():
    schema = {"properties": {"a\u202e": {"description": "x\x07", "enum": ["\x1b[2J"]}}}
    told = ToolSpec("t\x1b[31m", "red\x1b[0m\x00", schema)
    spec = tool_from_schema(told, None).spec
    assert (spec.name, spec.description) == ("t", "red\ufffd")
    assert spec.parameters == {"properties": {"a\ufffd": {"description": "x\ufffd", "enum": [""]}}}


def test_a_schema_that_holds_itself_is_left_before_python_ends():
    schema = {"type": "object", "additionalProperties": {"not": {"maxLength": 5}}, "$dynamicRef": "#", "minContains": 2}
    for _ in range(20):  # what ends the process depends on how deep it is when it ends
        with pytest.raises(UndecidedError, match="not done with them"):
            problems(checked_schema(schema), {})


@pytest.mark.parametrize("values", ["[" * 30 + "]" * 30, '{"a":' * 30 + "1" + "}" * 30])
def test_values_as_deep_as_people_send_them_are_told(values):
    schema = {"additionalProperties": {"$ref": "#"}, "items": {"$ref": "#"}}
    assert problems(checked_schema(schema), json.loads(values)) == []
