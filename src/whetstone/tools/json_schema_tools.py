"""Tools that come as a name, a text and a JSON Schema: those of a server, of a specification, of a table."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from whetstone.chat.message import ToolSpec
from whetstone.errors import RecipeError, ToolError
from whetstone.tools.foreign_schema import UndecidedError, checked_schema, problems
from whetstone.tools.plain_text import plain
from whetstone.tools.schema import Tool, parse_arguments


def tool_from_schema(
    spec: ToolSpec, answer: Callable[[dict[str, Any]], Awaitable[Any]], *, keeps_time: bool = False
) -> Tool:
    """A tool whose arguments are checked against its schema.

    Args:
        answer: Gets the arguments as one object.

    Raises:
        RecipeError: The schema is none, or one that cannot be applied without asking elsewhere.
    """
    try:
        schema = checked_schema(spec.parameters)
    except ValueError as error:
        raise RecipeError(f"the schema of {spec.name}: {error}") from None

    spec = ToolSpec(plain(spec.name), plain(spec.description), _plain_in(spec.parameters))

    async def function(**arguments: Any) -> Any:
        return await answer(arguments)

    return Tool(spec, function, functools.partial(_bound, spec, schema), keeps_time, binds_slowly=True)


def _bound(spec: ToolSpec, schema: str, arguments: str) -> dict[str, Any]:
    values = parse_arguments(spec.name, arguments)
    try:
        found = problems(schema, values)
    except UndecidedError as error:
        raise ToolError(f"{spec.name}: whether the arguments fit cannot be told: {error}") from None
    if found:
        raise ToolError(f"{spec.name}: {'; '.join(found)}")
    unknown = values.keys() - spec.properties.keys()
    if unknown and spec.properties and "additionalProperties" not in spec.parameters:
        raise ToolError(f"{spec.name}: there is no argument {', '.join(sorted(unknown))}")
    return values


def _plain_in(value: Any) -> Any:
    """A schema whose texts are only text."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): _plain_in(inner) for key, inner in value.items()}
    return [_plain_in(inner) for inner in value] if isinstance(value, list | tuple) else value
