"""Tools from a name, a description and a JSON Schema, as servers and specifications define them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from whetstone.chat.message import ToolSpec
from whetstone.errors import RecipeError, ToolError
from whetstone.tools.json_schema_validation import UndecidedError, checked_schema, find_schema_errors
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.tools.schema import Tool, parse_arguments


def tool_from_schema(
    spec: ToolSpec, answer: Callable[[dict[str, Any]], Awaitable[Any]], *, keeps_time: bool = False
) -> Tool:
    """Create a tool whose arguments are validated against a JSON Schema.

    Args:
        spec: Name, description and JSON Schema.
        answer: Async function that receives the arguments as one object and returns the result.
        keeps_time: Whether the tool enforces its own time limit.

    Raises:
        RecipeError: If the schema is invalid, or refers to another document.
    """
    try:
        schema = checked_schema(spec.parameters)
    except ValueError as error:
        raise RecipeError(f"the schema of {spec.name}: {error}") from None

    spec = ToolSpec(sanitize_text(spec.name), sanitize_text(spec.description), _plain_in(spec.parameters))

    async def function(**arguments: Any) -> Any:
        return await answer(arguments)

    return Tool(spec, function, functools.partial(_bound, spec, schema), keeps_time, binds_slowly=True)


def _bound(spec: ToolSpec, schema: str, arguments: str) -> dict[str, Any]:
    values = parse_arguments(spec.name, arguments)
    try:
        errors = find_schema_errors(schema, values)
    except UndecidedError as error:
        raise ToolError(f"{spec.name}: whether the arguments fit cannot be told: {error}") from None
    if errors:
        raise ToolError(f"{spec.name}: {'; '.join(errors)}")
    unknown = values.keys() - spec.properties.keys()
    if unknown and spec.properties and "additionalProperties" not in spec.parameters:
        raise ToolError(f"{spec.name}: there is no argument {', '.join(sorted(unknown))}")
    return values


def _plain_in(value: Any) -> Any:
    """Return a schema with control characters removed from all its texts."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, Mapping):
        return {sanitize_text(str(key)): _plain_in(inner) for key, inner in value.items()}
    return [_plain_in(inner) for inner in value] if isinstance(value, list | tuple) else value
