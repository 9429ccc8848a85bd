"""Schemas from other sources: nothing is fetched, validation terminates, and it agrees with jsonschema."""

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
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.json_schema_validation import SECONDS, UndecidedError, checked_schema, find_schema_errors


class Requests(BaseHTTPRequestHandler):
    paths: ClassVar[list[str]] = []

    def do_GET(self):
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"type": "string"}')

    def log_message(self, *_):
        pass


@pytest.fixture
def elsewhere():
    with HTTPServer(("127.0.0.1", 0), Requests) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        Requests.paths.clear()
        yield f"http://127.0.0.1:{server.server_port}/schema"
        server.shutdown()


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("deep", [False, True])
def test_reference_out_of_a_schema_is_refused_without_a_request(elsewhere, tmp_path, key, deep):
    (tmp_path / "secret.json").write_text('{"const": "secret"}')
    for place in (elsewhere, f"file://{tmp_path}/secret.json", "other.json", "//host/x"):
        leads = {key: place}
        schema = {"properties": {"a": {"anyOf": [leads]} if deep else leads}}
        with pytest.raises(RecipeError, match=r"the schema of t: .*refers to another document, and nothing is fetched"):
            tool_from_schema(ToolSpec("t", "", schema), None)
    assert Requests.paths == []


def test_local_reference_is_resolved_locally(elsewhere):
    """Resolve a plain reference after an `$id` at another address, from which it would be fetched otherwise."""
    schema = checked_schema(
        {"$id": elsewhere, "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}}
    )
    assert find_schema_errors(schema, {"a": 1}) == []
    assert find_schema_errors(schema, {"a": "x"}) == ["a: 'x' is not of type 'integer'"]
    with pytest.raises(UndecidedError, match=r"cannot be applied: .*does not exist"):
        find_schema_errors(checked_schema({"$id": elsewhere, "properties": {"a": {"$ref": "#/$defs/y"}}}), {"a": 1})
    assert Requests.paths == []


BOMB = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 4} for i in range(20)} | {"d20": {"type": "string"}}
ENDLESS = {
    "pattern": {"properties": {"a": {"pattern": "^(a+)+$"}}},
    "patternProperties": {"patternProperties": {"^(a+)+$": {}}},
    "additionalProperties": {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
    "growing": {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": BOMB},
    "itself": {"properties": {"a": {"$ref": "#/properties/a"}}},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_validation_is_ended(name):
    """Accept an immediate verdict of an engine that recognizes required parts."""
    text = "a" * 40 + "b"
    began = time.monotonic()
    try:
        find_schema_errors(checked_schema(ENDLESS[name]), {"a": text, text: 1})
        assert name not in ("growing", "itself")
    except UndecidedError:
        pass
    assert time.monotonic() - began < 20 * SECONDS


def test_other_episodes_continue_meanwhile_and_the_model_reads_the_reason():
    async def answer(arguments):
        return "fine"

    async def both():
        toolset = Toolset([tool_from_schema(ToolSpec("t", "", ENDLESS["growing"]), answer)])
        running = asyncio.create_task(toolset.call(ToolCall("t", '{"a": "x"}')))
        beats = 0
        while not running.done():
            await asyncio.sleep(0.01)
            beats += 1
        return beats, await running

    beats, answered = asyncio.run(both())
    assert beats > 3
    assert answered.record.outcome == "invalid_arguments"
    assert "cannot be told: its schema is not done with them in 0.5 s" in answered.text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": 5}, "is not a JSON Schema: 5 is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, "is not a JSON Schema: missing"),
        ({"properties": []}, "is not a JSON Schema"),
        ({"unevaluatedProperties": False, "patternProperties": {"x": {}}}, "unevaluatedProperties together with"),
        ({"description": "x" * 300_000}, "300"),
        (True, "it must be a mapping"),
        ({"$schema": 34}, "is not a JSON Schema"),
        ("x", "it must be a mapping"),
        ({"pattern": "a{99999999}"}, "repeats without bounds"),
        ({"pattern": "((a{999}){999}){999}"}, "repeats without bounds"),
        ({"pattern": "([^)]{999}){999}"}, "repeats without bounds"),
        ({"patternProperties": {"(ab|c){9999999}": {}}}, "repeats without bounds"),
    ],
)
def test_invalid_schema_is_reported(schema, message):
    with pytest.raises(ValueError, match=message):
        checked_schema(schema)


@pytest.mark.parametrize(
    "pattern",
    [
        "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$",
        r"^\\{999}[(]{999}\({999}$",
        "^[a-z]{1,63}([.][a-z]{1,63}){0,10}$",
    ],
)
def test_common_patterns_are_accepted(pattern):
    assert checked_schema({"pattern": pattern})


def test_excessively_deep_schema_is_rejected():
    schema = {"type": "string"}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(ValueError, match="is not a JSON Schema"):
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
def test_verdicts_are_those_of_the_library(schema, value):
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (not find_schema_errors(checked_schema(schema), value)) == expected


def test_descriptions_of_a_server_are_only_text():
    schema = {"properties": {"a\u202e": {"description": "x\x07", "enum": ["\x1b[2J"]}}}
    hostile = ToolSpec("t\x1b[31m", "red\x1b[0m\x00", schema)
    spec = tool_from_schema(hostile, None).spec
    assert (spec.name, spec.description) == ("t", "red\ufffd")
    assert spec.parameters == {"properties": {"a\ufffd": {"description": "x\ufffd", "enum": [""]}}}


def test_recursive_schema_is_left_before_the_recursion_limit():
    schema = {"type": "object", "additionalProperties": {"not": {"maxLength": 5}}, "$dynamicRef": "#", "minContains": 2}
    for _ in range(20):  # the crash of the process depends on its depth at the end
        with pytest.raises(UndecidedError, match="not done with them"):
            find_schema_errors(checked_schema(schema), {})


@pytest.mark.parametrize("values", ["[" * 30 + "]" * 30, '{"a":' * 30 + "1" + "}" * 30])
def test_deep_values_are_validated(values):
    schema = {"additionalProperties": {"$ref": "#"}, "items": {"$ref": "#"}}
    assert find_schema_errors(checked_schema(schema), json.loads(values)) == []
