"""Third-party tools: any schema of a server or a specification, with any arguments of a model.

A schema is accepted or rejected in one line; arguments are accepted or rejected with a message for the model, within a
time limit; an accepted schema can be rendered in every tool-call format.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

from fuzzing.calls import format_of
from fuzzing.choices import Choices, require
from fuzzing.trying import scratch
from whetstone.chat import FORMATS, ToolSpec
from whetstone.errors import RecipeError, ToolError
from whetstone.tools import json_schema_tools, json_schema_validation
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.openapi import OpenApi
from whetstone.tools.schema import tool_from_function

NAMES = ("a", "b", "amount", "unit", "x-y", "$ref", "type", "properties", "", "é", "9")
KINDS = ("object", "string", "integer", "number", "array", "boolean", "null", "any", "file")
PATTERNS = (
    "^a+$",
    "(a+)+$",
    "(a|a)*$",
    "(.*)*x",
    "[",
    "(?=",
    "\\p{L}",
    "^.{1,9999}$",
    "(a?){50}a{50}",
    "\\1",
    "a{99999999}",
)
REFERENCES = (
    "#", "#/", "#/$defs/a", "#/definitions/a", "#/properties/a", "#a", "http://127.0.0.1/s", "file:///etc/passwd",
    "a.json", "#/%zz",
)  # fmt: skip
FORMS = ("date-time", "email", "uri", "regex", "ipv4", "json-pointer", "binary", "")
WORDS = (*NAMES, *KINDS, *FORMS, *PATTERNS, *REFERENCES)
_SECONDS = 3.0
_TYPES: tuple[Any, ...] = (
    int, float, str, bool, bytes, list[int], dict[str, int], int | None, int | str, Literal["a", 1],
    tuple[int, str],
    Annotated[str, "said"], Any, set[str], complex, object, list["int"], "Nowhere", dict[tuple[int, int], str], None,
)  # fmt: skip
_folder = scratch("schemas")


def schema(choices: Choices, depth: int = 4) -> Any:
    """Generate a JSON Schema or something similar."""
    if depth == 0 or choices.often(16):
        return choices.one((True, False, {}, {"type": "string"}, choices.value(WORDS, 1)))
    keywords: dict[str, Any] = {}
    for _ in range(1 + choices.below(4)):
        key = choices.one(tuple(_KEYWORDS))
        keywords[key] = choices.value(WORDS, 2) if choices.often(16) else _KEYWORDS[key](choices, depth - 1)
    return keywords


def _many(choices: Choices, depth: int) -> dict[str, Any]:
    return {choices.name(NAMES): schema(choices, depth) for _ in range(choices.below(4))}


def _list(choices: Choices, depth: int) -> list[Any]:
    return [schema(choices, depth) for _ in range(choices.below(4))]


def _number(choices: Choices, depth: int) -> Any:
    return choices.one((0, 1, 2, -1, 0.1, 1e308, 10**400, 2**63, 5))


_KEYWORDS: dict[str, Any] = {
    "type": lambda c, d: c.name(KINDS) if c.often(200) else c.some(lambda: c.one(KINDS), 3),
    "properties": _many,
    "$defs": _many,
    "definitions": _many,
    "dependentSchemas": _many,
    "patternProperties": lambda c, d: {c.one(PATTERNS): schema(c, d) for _ in range(c.below(3))},
    **dict.fromkeys(("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedProperties", "unevaluatedItems", "additionalItems"), schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _list),
    **dict.fromkeys(("minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems",
    "exclusiveMinimum", "minContains"), _number),
    "required": lambda c, d: c.some(lambda: c.name(NAMES), 4),
    "enum": lambda c, d: c.some(lambda: c.value(WORDS, 1), 4),
    "const": lambda c, d: c.value(WORDS, 2),
    "default": lambda c, d: c.value(WORDS, 1),
    "pattern": lambda c, d: c.name(PATTERNS),
    "format": lambda c, d: c.name(FORMS),
    "uniqueItems": lambda c, d: c.often(128),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), lambda c, d: c.name(REFERENCES)),
    **dict.fromkeys(("$anchor", "$id", "$dynamicAnchor", "title", "description"), lambda c, d: c.text(WORDS, 3)),
    "$schema": lambda c, d: c.one(
        ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-04/schema#", "x")
    ),
    "dependentRequired": lambda c, d: {c.name(NAMES): c.some(lambda: c.name(NAMES), 3)},
    "nullable": lambda c, d: True,
}  # fmt: skip


def arguments(choices: Choices) -> str:
    """Generate arguments as a model might write them."""
    if choices.often(30):
        return choices.text((*WORDS, '{"a": 1}', '{"a":', "}"), 6)
    values = {choices.name(NAMES): choices.value(WORDS, 3) for _ in range(choices.below(4))}
    if choices.often(30):
        values["a"] = "a" * choices.one((30, 3000, 100_000)) + "!"
    return choices.json(values, WORDS)


def try_server_tool(choices: Choices) -> None:
    """Try a tool of a server."""
    declared = choices.note("schema", _object(choices))
    spec = ToolSpec(choices.name(NAMES), choices.text(WORDS, 3), declared)
    if choices.often(40):
        try:
            row = choices.value((*WORDS, "name", "function", "parameters", "description", "inputSchema"), 3)
            spec = ToolSpec.from_openai(choices.note("declared", row))
        except ValueError:
            return None
    try:
        tool = tool_from_schema(spec, _nothing)
    except RecipeError as error:
        return _one_line(error)
    _bound(choices, tool)
    _check_formats(tool.spec)
    return None


def _object(choices: Choices) -> Any:
    object_schema = schema(choices)
    return (
        {"type": "object", **object_schema} if isinstance(object_schema, dict) and choices.often(200) else object_schema
    )


def try_specification(choices: Choices) -> None:
    """Try tools of an OpenAPI specification."""
    parameter = {
        "name": choices.name(NAMES),
        "in": choices.one(("query", "path", "header", "cookie")),
        "schema": schema(choices, 2),
    }
    body = {
        "content": {
            choices.one(("application/json", "multipart/form-data", "text/plain")): {"schema": schema(choices, 2)}
        }
    }
    operation = {"operationId": "a", "parameters": [parameter], "requestBody": body, "responses": {}}
    document = {
        "openapi": "3.0.0", "info": {}, "servers": [{"url": "http://127.0.0.1:1"}],
        "paths": {"/{a}/b": {"get": operation, "post": {**operation, "operationId": "b"}}},
        "components": {"schemas": {"a": schema(choices, 2), "b": {"$ref": "#/components/schemas/a"}}},
    }  # fmt: skip
    text = choices.note(
        "document", choices.json(choices.mutated(document, (*WORDS, "#/components/schemas/a", "#/paths")), WORDS)
    )
    path = _folder / "api.yaml"
    path.write_text(text, errors="replace")
    try:
        tools = OpenApi(file=str(path)).tools()
    except RecipeError as error:
        return _one_line(error)
    for tool in tools[:3]:
        _bound(choices, tool)
        _check_formats(tool.spec)
    return None


def try_function(choices: Choices) -> None:
    """Try a user-defined function."""

    def function(a: Any, b: Any = 1) -> str:
        return "x"

    hints = {"a": choices.one(_TYPES), "b": choices.one(_TYPES)}
    function.__annotations__ = choices.note(
        "hints", {name: hint for name, hint in hints.items() if not choices.often(16)}
    )
    function.__doc__ = choices.text((*WORDS, "Args:\n", "    a: ", "\n\n", ":param a:"), 6)
    try:
        tool = tool_from_function(function)
    except RecipeError as error:
        return _one_line(error)
    _bound(choices, tool)
    _check_formats(tool.spec)
    return None


async def _nothing(values: dict[str, Any]) -> str:
    return ""


def _bound(choices: Choices, tool: Any) -> None:
    for _ in range(3):
        text = choices.note("arguments", arguments(choices))
        before = time.process_time()
        try:
            values = tool.bind(text)
            require(isinstance(values, dict), "arguments that are no mapping", values)
        except ToolError as error:
            str(error)
            require(len(str(error)) < 5000, "a refusal without bounds", len(str(error)))
        require(time.process_time() - before < _SECONDS, "arguments take too long", time.process_time() - before)


def _check_formats(spec: ToolSpec) -> None:
    for name in FORMATS:
        format_of(name).describe([spec])
    json.dumps(spec.to_openai())


def _one_line(error: RecipeError) -> None:
    require("\n" not in str(error).strip() and len(str(error)) <= 2000, "no one line", str(error))


def one(choices: Choices) -> None:
    """Run one input."""
    choices.one((try_server_tool, try_server_tool, try_server_tool, try_function, try_specification))(choices)


def plant() -> None:
    """Plant a read of a key that a schema lacks."""
    unplanted = json_schema_validation.find_schema_errors

    def problems(schema: str, values: Any, *, most: int = 3) -> list[str]:
        if "b" in values:
            raise KeyError("planted")
        return unplanted(schema, values, most=most)

    vars(json_schema_tools)["find_schema_errors"] = problems
