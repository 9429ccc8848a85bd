"""How does a typed function become a tool? Its signature is the schema, its docstring is what the model reads.

Easy to get wrong: arguments come from a model as JSON, so `"12"` for an `int` is a mistake to be
told, not a value to be converted; validation is strict.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from whetstone.chat import ToolSpec
from whetstone.errors import RecipeError, ToolError

_MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model can call."""

    spec: ToolSpec
    function: Callable[..., Any]
    bind: Callable[[str], dict[str, Any]]
    """The keyword arguments in a JSON text, checked; raises ToolError, whose text says what is wrong."""
    keeps_time: bool = False
    """Whether it ends by itself when its time is over; then nobody else cuts it off."""
    binds_slowly: bool = False
    """Whether reading arguments may take long enough to be done beside the event loop."""

    def named(self, name: str) -> Tool:
        """The same tool under another name."""
        return replace(self, spec=replace(self.spec, name=name))


def tool_from_function(function: Callable[..., Any]) -> Tool:
    """The tool a typed function or method is: name, schema and description from the function itself.

    Of `Annotated[str, "the name of a town"]` the text is the parameter's description, where the docstring has none.

    Raises:
        RecipeError: A parameter has no type, a type JSON cannot express, or is positional-only or variadic.
    """
    if inspect.ismethod(function):  # every episode has an object of its own, all of them the same schema
        return replace(_tool_of(function.__func__, True), function=function)
    return _tool_of(function, False)


@functools.lru_cache(maxsize=1024)  # every episode makes its toolset anew; a schema costs two milliseconds
def _tool_of(function: Callable[..., Any], method: bool) -> Tool:
    name = getattr(function, "__name__", type(function).__name__)
    documentation = docstring_parser.parse(inspect.getdoc(function) or "")
    about = {p.arg_name: p.description for p in documentation.params}
    # of a partial or a callable object the hints are those of what is called in the end
    inner = function.func if isinstance(function, functools.partial) else function
    try:
        hints = get_type_hints(inner if inspect.isroutine(inner) else type(inner).__call__, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise RecipeError(f"tool {name}: the type of a parameter cannot be read: {error}") from None
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[int(method) :]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RecipeError(f"tool {name}: parameter {parameter} cannot be passed by name; write it out")
        if parameter.name not in hints:
            raise RecipeError(f"tool {name}: parameter {parameter.name} has no type; the type is what the model reads")
        hint = hints[parameter.name]
        default = ... if parameter.default is parameter.empty else parameter.default
        said = about.get(parameter.name) or next(
            (m for m in getattr(hint, "__metadata__", ()) if isinstance(m, str)), None
        )
        fields[parameter.name] = (hint, Field(default, description=said) if said else Field(default))
    try:
        arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = arguments.model_json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
        raise RecipeError(f"tool {name}: a parameter has a type JSON cannot express: {error}".splitlines()[0]) from None
    schema.pop("title", None)
    for field_schema in schema.get("properties", {}).values():
        field_schema.pop("title", None)
    schema.setdefault("properties", {})
    description = "\n".join(filter(None, (documentation.short_description, documentation.long_description)))
    return Tool(ToolSpec(name, description, schema), function, functools.partial(_bound, name, arguments))


def _bound(name: str, model: type[BaseModel], arguments: str) -> dict[str, Any]:
    try:
        values = model.model_validate_json(arguments, strict=True)
    except ValidationError as error:
        raise ToolError(f"{name}: {_in_one_line(error)}") from None
    return {field: getattr(values, field) for field in model.model_fields}


def _in_one_line(error: ValidationError) -> str:
    said = []
    problems = error.errors(include_url=False, include_context=False)
    for problem in problems[:_MOST_PROBLEMS]:
        where = _cut(".".join(map(str, problem["loc"])))
        kind = problem["type"]
        if kind == "missing":
            said.append(f"argument {where} is missing")
        elif kind == "extra_forbidden":
            said.append(f"there is no argument {where}")
        elif kind == "json_invalid":
            said.append("the arguments are not valid JSON")
        elif not where:
            said.append("the arguments must be a JSON object")
        else:
            said.append(f"argument {where}: {problem['msg'].lower()}, got {_shown(problem['input'])}")
    more = len(problems) - len(said)
    return "; ".join([*said, f"and {more} more"] if more > 0 else said)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
