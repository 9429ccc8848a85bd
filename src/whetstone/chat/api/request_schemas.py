"""JSON Schemas of request fields for the OpenAPI document; each API format publishes the fields that it supports.

Note:
    A field must be either supported and published, or neither. An API format rejects fields outside the set of names
    that it publishes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Shape = Mapping[str, Any]
"""JSON Schema as a mapping."""


def _or_none(shape: Shape) -> Shape:
    return {"anyOf": [shape, {"type": "null"}]}


def number_schema(low: float, high: float) -> Shape:
    """Return the JSON Schema of a number from `low` to `high`, or null."""
    return _or_none({"type": "number", "minimum": low, "maximum": high})


def integer_schema(least: int, most: int | None = None) -> Shape:
    """Return the JSON Schema of an integer from `least` to `most` (None: unbounded), or null."""
    return _or_none({"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})})


TEXT: Shape = {"type": "string"}
FLAG = _or_none({"type": "boolean"})
OBJECT: Shape = {"type": "object"}
_CALL: Shape = {
    "type": "object",
    "required": ["id", "type", "function"],
    "properties": {
        "id": TEXT,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {"name": TEXT, "arguments": TEXT},
        },
    },
}
_PART: Shape = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": TEXT},
}
_CONTENT: Shape = {"anyOf": [TEXT, {"type": "array", "items": _PART}]}
_MESSAGE: Shape = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": _or_none(_CONTENT),
        "tool_calls": _or_none({"type": "array", "items": _CALL}),
        "tool_call_id": _or_none(TEXT),
    },
}
_FUNCTION: Shape = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": TEXT, "description": _or_none(TEXT), "parameters": _or_none(OBJECT)},
}
_TOOL: Shape = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
}
_FORMAT: Shape = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "json_schema": {"type": "object", "required": ["schema"], "properties": {"name": TEXT, "schema": OBJECT}},
        "schema": OBJECT,
        "name": TEXT,
    },
}
_CHOICE: Shape = {"anyOf": [{"enum": ["none", "auto", "required"]}, OBJECT]}
_STOPS: Shape = {"anyOf": [TEXT, {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 16}]}
SHAPES: Mapping[str, Shape] = {
    "frequency_penalty": number_schema(-2, 2),
    "input": {"anyOf": [TEXT, {"type": "array", "items": OBJECT}]},
    "instructions": _or_none(TEXT),
    "logit_bias": _or_none({"type": "object", "additionalProperties": {"type": "number"}}),
    "logprobs": FLAG,
    "max_completion_tokens": integer_schema(1),
    "max_output_tokens": integer_schema(1),
    "max_tokens": integer_schema(1),
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "model": TEXT,
    "n": integer_schema(1, 128),
    "output_format": _or_none(_FORMAT),
    "parallel_tool_calls": FLAG,
    "presence_penalty": number_schema(-2, 2),
    "previous_response_id": _or_none(TEXT),
    "prompt": {"anyOf": [TEXT, {"type": "array", "items": {"type": "integer", "minimum": 0}}]},
    "response_format": _or_none(_FORMAT),
    "seed": _or_none({"type": "integer", "minimum": -(2**62), "maximum": 2**62}),
    "stop": _or_none(_STOPS),
    "stop_sequences": _or_none({"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 16}),
    "store": FLAG,
    "stream": FLAG,
    "stream_options": _or_none(OBJECT),
    "system": _or_none(_CONTENT),
    "temperature": number_schema(0, 2),
    "text": _or_none({"type": "object", "properties": {"format": _FORMAT}}),
    "thinking": _or_none({"type": "object", "properties": {"type": {"enum": ["enabled", "adaptive", "disabled"]}}}),
    "tool_choice": _or_none(_CHOICE),
    "tools": _or_none({"type": "array", "items": _TOOL}),
    "top_k": integer_schema(0, 2**31 - 1),
    "top_logprobs": integer_schema(0, 20),
    "top_p": number_schema(0, 1),
}
"""JSON Schema of each request field that all API formats share; fields without an entry are unrestricted."""
BLOCKS: Shape = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": _CONTENT},
    },
}
"""JSON Schema of `messages` in Anthropic's API."""
_FLAT_TOOL: Shape = {"allOf": [_FUNCTION, {"properties": {"type": {"const": "function"}}}]}
_NAMESPACE: Shape = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {"type": {"const": "namespace"}, "name": TEXT, "tools": {"type": "array", "items": _FLAT_TOOL}},
}
FLAT_TOOLS = _or_none({"type": "array", "items": {"anyOf": [_FLAT_TOOL, _NAMESPACE]}})
"""JSON Schema of `tools` in the Responses API, in which the function is not a nested object."""
NAMED_TOOLS = _or_none(
    {
        "type": "array",
        "items": {"type": "object", "required": ["name"], "properties": {"name": TEXT, "input_schema": OBJECT}},
    }
)
"""JSON Schema of `tools` in Anthropic's API."""


TYPED_CHOICE = _or_none(
    {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}}}
)
"""JSON Schema of `tool_choice` in Anthropic's API."""


def request_schema(names: Collection[str], required: Collection[str], **own: Shape) -> Shape:
    """Return the JSON Schema of a request body with these fields.

    Args:
        names: Names of all supported fields.
        required: Names of required fields.
        own: Schemas of fields that differ from those in `SHAPES`.
    """
    properties = {name: own.get(name, SHAPES.get(name, {})) for name in sorted(names)}
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(required),
        "additionalProperties": {"type": "null"},
    }
