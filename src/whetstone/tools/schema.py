"""Tools from typed Python functions: the signature becomes the JSON Schema, the docstring the description.

Arguments are validated strictly: `"12"` for an `int` is an error that the model reads, not a value to convert. As in
JSON Schema, 3.0 is an integer.

Note:
    Parameters are fields `p0`, `p1`, … of a pydantic model, with the names that the model sees as aliases. Pydantic
    reserves `model_config`, `schema`, `copy` and every name with a leading underscore.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

import docstring_parser
import pydantic_core
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from whetstone.chat import ToolSpec
from whetstone.errors import RecipeError, ToolError, exception_text
from whetstone.strict_json import to_json
from whetstone.tools.side_effects import Effect, declared_effect

_MOST_PROBLEMS = 5
_EXTRA = "**"
"""Alias of the field for keyword arguments that the signature does not name."""
_UNPACK = (typing.Unpack, typing_extensions.Unpack)
_LISTS = (collections.abc.Iterable, collections.abc.Collection, collections.abc.Container, collections.abc.Reversible)
_UNREADABLE = (type, collections.abc.Generator, typing.Self, typing_extensions.Self)
_ABSENT = object()
"""Default of an optional key of `**options: Unpack[…]`: the argument is not passed."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Tool that a model can call: its declaration, its function, and the validation of arguments.

    `tool_from_function` and `tool_from_schema` create tools; `Toolset` executes them.
    """

    spec: ToolSpec
    """Declaration of the tool that the model reads."""
    function: Callable[..., Any]
    """Function of the tool, sync or async; receives every argument by keyword."""
    bind: Callable[[str], dict[str, Any]]
    """Function from the JSON text of the arguments to validated arguments.

    It raises a `ToolError` that names the argument and the problem.
    """
    keeps_time: bool = False
    """Whether the tool enforces its own time limit; otherwise the toolset enforces one."""
    binds_slowly: bool = False
    """Whether validating arguments may take long enough to require a thread."""
    effects: Effect | None = None
    """Effect of a call outside of the episode; None: unknown."""

    def named(self, name: str) -> Tool:
        """Return the same tool under another name."""
        return replace(self, spec=replace(self.spec, name=name))


def tool_from_function(function: Callable[..., Any], name: str | None = None) -> Tool:
    """Create a tool from a typed function, method, partial or callable object.

    Descriptions of parameters are taken from `pydantic.Field`, then from the docstring, then from a text in
    `Annotated`. Defaults, bounds and aliases of `Field` apply, also as the default of a parameter. `**options` accepts
    arguments of any other name. The arguments that a `functools.partial` sets by keyword are hidden from the model.

    Args:
        function: Function, sync or async, with a type for each parameter.
        name: Name of the tool; None: the name of the function.

    Raises:
        RecipeError: If a parameter has no type, or a type that JSON cannot express.
    """
    is_method = inspect.ismethod(function)  # all objects of a class share one schema
    described = function.__func__ if is_method else function  # type: ignore[attr-defined]
    make = _read_signature if isinstance(described, Hashable) else _read_signature.__wrapped__
    spec, signature = make(described, is_method, name)
    by_name = function
    if signature.positional or signature.variadic:
        by_name = functools.partial(_call_by_position, function, signature.positional, signature.variadic)
    bind = functools.partial(_bind, spec.name, signature)
    return Tool(spec, by_name, bind, effects=declared_effect(function, spec.name))


def parse_arguments(tool: str, arguments: str) -> dict[str, Any]:
    """Parse the JSON text of a call's arguments into a dictionary.

    Whole numbers become integers.

    Args:
        tool: Name of the tool, for errors.
        arguments: Text of the arguments, as the model wrote it.

    Raises:
        ToolError: If the text is not a JSON object, or contains a number that JSON cannot express.
    """
    try:
        values = with_integers(pydantic_core.from_json(arguments, allow_inf_nan=False))
    except (ValueError, TypeError):
        raise ToolError(f"{tool}: the arguments are not valid JSON") from None
    if not isinstance(values, dict):
        raise ToolError(f"{tool}: the arguments must be a JSON object")
    return values


def with_integers(value: Any) -> Any:
    """Return a JSON value in which every whole number is an integer: 3.0 and 3 are the same number.

    Raises:
        ValueError: If a number is not finite, such as 1e999.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("not a number of JSON")
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: with_integers(inner) for key, inner in value.items()}
    return [with_integers(inner) for inner in value] if isinstance(value, list) else value


@dataclass(slots=True)
class _Signature:
    """Map from the arguments of a call to those of the function."""

    model: type[BaseModel]
    """Pydantic model that validates the arguments."""
    names: dict[str, str] = field(default_factory=dict)
    """Name of the function's parameter by field of the model."""
    aliases: set[str] = field(default_factory=set)
    """Names of the arguments in JSON."""
    positional: tuple[str, ...] = ()
    """Names of the parameters that are passed by position."""
    variadic: str = ""
    """Name of the parameter `*args`; empty if there is none."""
    accepts_extra: bool = False
    """Whether the function has a parameter `**kwargs`, which accepts arguments of any name."""


@functools.lru_cache(maxsize=1024)  # every episode has a new toolset; a schema costs two milliseconds
def _read_signature(function: Callable[..., Any], is_method: bool, name: str | None) -> tuple[ToolSpec, _Signature]:
    inner = function.func if isinstance(function, functools.partial) else function
    called = inner if inspect.isroutine(inner) else type(inner).__call__
    name = name or str(getattr(function, "__name__", None) or getattr(inner, "__name__", type(inner).__name__))
    text, descriptions = _read_docstrings(function, inner, called)
    fields: dict[str, tuple[Any, Any]] = {}
    signature = _Signature(BaseModel)
    parameters = _list_parameters(function, is_method, f"tool {name}")
    is_variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    for parameter in parameters:
        where = f"tool {name}: parameter {parameter.name}"
        if parameter.annotation is parameter.empty:
            raise RecipeError(f"{where} has no type; add a type, from which the model's schema is made")
        hint = _resolve_type(parameter.annotation, called, where)
        accepted: dict[str, tuple[Any, Any]] = {parameter.name: (hint, parameter.default)}
        alias = None
        if parameter.kind is parameter.VAR_POSITIONAL:
            signature.variadic = parameter.name
            accepted = {parameter.name: (list[hint], Field(default_factory=list))}  # type: ignore[valid-type]
        elif parameter.kind is parameter.VAR_KEYWORD and get_origin(hint) in _UNPACK:
            accepted = _list_keys(get_args(hint)[0], where)
        elif parameter.kind is parameter.VAR_KEYWORD:
            signature.accepts_extra, alias = True, _EXTRA
            accepted = {parameter.name: (dict[str, hint], Field(default_factory=dict))}  # type: ignore[valid-type]
        elif parameter.kind is parameter.POSITIONAL_ONLY or (
            is_variadic and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ):
            signature.positional += (parameter.name,)
        for key, (kind, default) in accepted.items():
            with _naming(where):
                model_field = _create_field(key, kind, default, descriptions.get(key), alias)
            if model_field[1].alias in signature.aliases:
                raise RecipeError(f"{where}: another parameter has the alias {model_field[1].alias}")
            signature.aliases.add(model_field[1].alias)
            signature.names[f"p{len(fields)}"] = key
            fields[f"p{len(fields)}"] = model_field
    try:
        signature.model = _create_model(fields)
        schema = _create_schema(signature)
    except Exception:  # types of others define their own schema
        for one, model_field in fields.items():
            with _naming(f"tool {name}: parameter {signature.names[one]}"):
                _create_model({one: model_field}).model_json_schema(schema_generator=_Schema)
        raise
    return ToolSpec(name, text, schema), signature


def _create_model(fields: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    definitions: dict[str, Any] = dict(fields)
    model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **definitions)
    if fields.keys() - model.model_fields.keys():
        raise TypeError("a ClassVar is no parameter; annotate the type of the value")
    return model


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Context manager that adds the name of the parameter to exceptions that its type raises."""
    try:
        yield
    except Exception as error:
        line = exception_text(error).strip().partition("\n")[0]
        raise RecipeError(f"{where} has a type that JSON cannot express: {line}") from None


def _create_schema(signature: _Signature) -> dict[str, Any]:
    schema = signature.model.model_json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    properties = schema.setdefault("properties", {})
    for field_schema in properties.values():
        field_schema.pop("title", None)
    if signature.accepts_extra:
        schema["additionalProperties"] = properties.pop(_EXTRA).get("additionalProperties", True)
    return schema


class _Schema(GenerateJsonSchema):
    """JSON Schema generator that keeps every default that JSON can express, in the same order in every process."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def encode_default(self, dft: Any) -> Any:
        """Return a default value as JSON.

        Raises:
            PydanticSerializationError: If JSON cannot express it; the schema then has no default.
        """
        try:
            encoded = super().encode_default(json.loads(to_json(dft)) if isinstance(dft, Set) else dft)
            json.dumps(encoded, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise pydantic_core.PydanticSerializationError(exception_text(error)) from None
        return encoded


def _list_parameters(function: Callable[..., Any], is_method: bool, where: str) -> list[inspect.Parameter]:
    """Return the parameters that a model can pass, without `self` and without keywords of a partial.

    Raises:
        RecipeError: If the signature cannot be read.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise RecipeError(f"{where}: the signature cannot be read: {error}") from None
    if is_method and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    hidden = function.keywords if isinstance(function, functools.partial) else {}
    return [parameter for parameter in parameters if parameter.name not in hidden]


def _read_docstrings(function: Any, inner: Any, called: Any) -> tuple[str, dict[str, str]]:
    """Return the description of a function, and that of each parameter by name, from its docstrings."""
    texts = [inspect.getdoc(one) for one in (inner, called)]
    if function is not inner and function.__doc__ != functools.partial.__doc__:
        texts.insert(0, function.__doc__)
    documented = [docstring_parser.parse(text) for text in dict.fromkeys(texts) if text]
    descriptions = {p.arg_name: p.description or "" for one in reversed(documented) for p in one.params}
    parts = (documented[0].short_description, documented[0].long_description) if documented else ()
    return "\n".join(filter(None, parts)), {name.lstrip("*"): text for name, text in descriptions.items()}


def _resolve_type(annotation: Any, called: Any, where: str) -> Any:
    """Return the type of an annotation.

    Forward references are looked up in the function's module and closure.

    Args:
        annotation: Annotation of a parameter.
        called: Function that is called.
        where: Name of the parameter, for errors.

    Raises:
        RecipeError: If a name in the annotation is not defined.
    """
    plain = inspect.unwrap(called)
    scope = dict(getattr(plain, "__globals__", {}))
    scope |= {parameter.__name__: parameter for parameter in getattr(plain, "__type_params__", ())}
    if inspect.isfunction(plain):
        for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=False):
            with_value = _read_cell(cell)
            scope |= {name: with_value} if with_value is not _ABSENT else {}

    def carrier() -> None: ...

    carrier.__annotations__ = {"type": annotation}
    try:
        return _readable(get_type_hints(carrier, scope, include_extras=True)["type"])
    except Exception as error:  # an annotation is an expression of the tool's author
        raise RecipeError(f"{where}: the type cannot be read: {exception_text(error)}") from None


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return _ABSENT


def _readable(hint: Any) -> Any:
    """Return a type with the same values that pydantic validates completely.

    An `Iterable` becomes a list, because pydantic validates an iterable while the function consumes it. Before Python
    3.12, pydantic reads only the `TypedDict` of `typing_extensions`.

    Raises:
        TypeError: If JSON has no values of the type.
    """
    if sys.version_info < (3, 12) and typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        keys = {key: _of_key(inner) for key, inner in get_type_hints(hint, include_extras=True).items()}
        marks = {key: typing_extensions.Required if key in hint.__required_keys__ else typing_extensions.NotRequired
                 for key in keys}  # fmt: skip
        return typing_extensions.TypedDict(hint.__name__, {key: marks[key][keys[key]] for key in keys})  # type: ignore[operator]
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _UNREADABLE or origin in _UNREADABLE:
        raise TypeError(f"{hint} is not a type of values in JSON")
    if hint is typing.AnyStr or hint is typing.LiteralString:
        return str
    if hint in _LISTS or origin in _LISTS:
        return list[_readable(arguments[0])] if arguments else list  # type: ignore[misc]
    if origin is Annotated:
        return Annotated[(_readable(arguments[0]), *hint.__metadata__)]
    if origin is Literal or not arguments or any(isinstance(one, list) for one in arguments):
        return hint
    readable = tuple(map(_readable, arguments))
    if all(one is other for one, other in zip(arguments, readable, strict=True)):
        return hint
    if origin in (Union, types.UnionType):
        return Union[readable]  # noqa: UP007
    return origin[readable if len(readable) > 1 else readable[0]]


def _of_key(hint: Any) -> Any:
    marks = (typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.ReadOnly)
    return _of_key(get_args(hint)[0]) if get_origin(hint) in marks else _readable(hint)


def _list_keys(hint: Any, where: str) -> dict[str, tuple[Any, Any]]:
    """Return (type, default) by key for the parameter `**options: Unpack[Options]`.

    Raises:
        RecipeError: If the type is not a `TypedDict`.
    """
    if not typing_extensions.is_typeddict(hint):
        raise RecipeError(f"{where}: Unpack takes a TypedDict, got {hint}")
    hints = get_type_hints(hint, include_extras=True)
    return {
        key: (_of_key(inner), inspect.Parameter.empty if key in hint.__required_keys__ else _ABSENT)
        for key, inner in hints.items()
    }


def _create_field(name: str, hint: Any, default: Any, documented: str | None, alias: str | None) -> tuple[Any, Any]:
    """Return (type, pydantic field) for a parameter, with its default, alias and description."""
    if isinstance(default, FieldInfo):
        hint, default = Annotated[hint, default], inspect.Parameter.empty
    info = FieldInfo.from_annotation(hint)
    is_none = default is None or (default is inspect.Parameter.empty and info.default is None)
    if is_none and info.annotation is not Any:  # `unit: str = None` accepts null
        base, metadata = (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
        hint = Annotated[(Optional[base], *metadata)] if metadata else Optional[base]  # noqa: UP045
    texts = (one if isinstance(one, str) else getattr(one, "documentation", None) for one in info.metadata)
    about = info.description or documented or next((text for text in texts if isinstance(text, str)), None)
    options: dict[str, Any] = {"description": about} if about else {}
    if default is not inspect.Parameter.empty:
        options["default"] = default
    own = next((one for one in (info.validation_alias, info.alias) if isinstance(one, str)), name)
    return hint, Field(alias=alias or own, validation_alias=alias or own, **options)


def _call_by_position(
    function: Callable[..., Any], positional: tuple[str, ...], variadic: str, /, **arguments: Any
) -> Any:
    """Call a function and pass some of its arguments by position."""
    values = [arguments.pop(name) for name in positional]
    if variadic:
        values += arguments.pop(variadic)
    return function(*values, **arguments)


def _bind(tool: str, signature: _Signature, arguments: str) -> dict[str, Any]:
    values_by_name: Mapping[str, Any] = parse_arguments(tool, arguments)
    if signature.accepts_extra:
        known = {key: value for key, value in values_by_name.items() if key in signature.aliases and key != _EXTRA}
        values_by_name = {**known, _EXTRA: {key: value for key, value in values_by_name.items() if key not in known}}
    try:
        values = signature.model.model_validate_json(json.dumps(values_by_name), strict=True)
    except ValidationError as error:
        raise ToolError(f"{tool}: {_in_one_line(error)}") from None
    bound = {name: getattr(values, one) for one, name in signature.names.items()}
    if signature.accepts_extra:
        extra = bound.pop(list(signature.names.values())[-1])
        if twice := extra.keys() & bound.keys():
            raise ToolError(f"{tool}: there is no argument {', '.join(sorted(twice))}")
        bound |= extra
    return {name: value for name, value in bound.items() if value is not _ABSENT}


def _in_one_line(error: ValidationError) -> str:
    lines = []
    problems = error.errors(include_url=False, include_context=False)
    for problem in problems[:_MOST_PROBLEMS]:
        where = _cut(".".join(map(str, problem["loc"])).removeprefix(f"{_EXTRA}."))
        kind = problem["type"]
        if kind == "missing":
            lines.append(f"argument {where} is missing")
        elif kind == "extra_forbidden":
            lines.append(f"there is no argument {where}")
        elif kind == "json_invalid":
            lines.append("the arguments are not valid JSON")
        else:
            lines.append(f"argument {where}: {problem['msg'].lower()}, got {_format_value(problem['input'])}")
    more = len(problems) - len(lines)
    return "; ".join([*lines, f"and {more} more"] if more > 0 else lines)


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
