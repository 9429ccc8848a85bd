"""Tools that come as a name, a text and a JSON Schema: those of a server, of a specification, of a table."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import jsonschema

from whetstone.chat.message import ToolSpec
from whetstone.errors import ToolError
from whetstone.tools.schema import Tool


def tool_from_schema(
    spec: ToolSpec, answer: Callable[[dict[str, Any]], Awaitable[Any]], *, keeps_time: bool = False
) -> Tool:
    """A tool whose arguments are checked against its schema.

    Args:
        answer: Gets the arguments as one object.
    """

    async def function(**arguments: Any) -> Any:
        return await answer(arguments)

    return Tool(spec, function, functools.partial(_bound, spec), keeps_time)


@functools.lru_cache(maxsize=4096)
def _validator(schema: str) -> Any:
    parsed = json.loads(schema)
    kind = jsonschema.validators.validator_for(parsed)
    return kind(parsed)


def _bound(spec: ToolSpec, arguments: str) -> dict[str, Any]:
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        raise ToolError(f"{spec.name}: the arguments are not valid JSON") from None
    if not isinstance(values, dict):
        raise ToolError(f"{spec.name}: the arguments must be a JSON object")
    problems = sorted(_validator(json.dumps(spec.parameters)).iter_errors(values), key=lambda e: list(map(str, e.path)))
    if problems:
        said = "; ".join(f"{'.'.join(map(str, p.path)) or 'arguments'}: {p.message[:200]}" for p in problems[:3])
        raise ToolError(f"{spec.name}: {said}")
    unknown = values.keys() - spec.parameters.get("properties", {}).keys()
    if unknown and "additionalProperties" not in spec.parameters and spec.parameters.get("properties"):
        raise ToolError(f"{spec.name}: there is no argument {', '.join(sorted(unknown))}")
    return values


def spec_of(declared: Mapping[str, Any]) -> ToolSpec:
    """A declaration in the OpenAI shape, with or without `{"type": "function", "function": …}` around it."""
    inner = declared.get("function", declared)
    parameters = inner.get("parameters") or inner.get("inputSchema") or {"type": "object", "properties": {}}
    return ToolSpec(str(inner["name"]), str(inner.get("description", "")), parameters)
