"""Error messages for invalid recipe keys, with the nearest valid key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from whetstone.errors import did_you_mean
from whetstone.plugins import OptionError, format_validation_error
from whetstone.recipe.importers.names import explain_unknown_key
from whetstone.renames import renamed_key


def describe_validation_error(
    error: ValidationError, model: type[BaseModel], recipe: Mapping[str, Any] | None = None
) -> OptionError:
    """Convert the first error of a Pydantic validation to a one-line error.

    The caller adds file and line.

    Args:
        error: Error of Pydantic.
        model: Settings class of the document, with the valid keys.
        recipe: Keys of the recipe, if the document is one, so that names of other libraries get their counterparts.
    """
    problem = error.errors(include_url=False)[0]
    *above, last = problem["loc"]
    message = format_validation_error(problem)
    if problem["type"] == "extra_forbidden":
        new = renamed_key(".".join(part for part in problem["loc"] if isinstance(part, str)))  # no indices of lists
        fields, section = _fields_at(model, above), ".".join(map(str, above))
        if recipe is None:
            near = did_you_mean(str(last), fields)
        else:
            near = explain_unknown_key(str(last), problem["input"], fields, recipe, section)
        message = f"renamed to {new}" if new else f"no such key{near}"
    elif problem["type"] in ("model_type", "list_type"):
        message = _describe_section(problem, _model_at(model, problem["loc"]), message)
    elif problem["type"] == "missing" and last == "name":
        message += _suggest_name(problem["input"])
    return OptionError(".".join(map(str, problem["loc"])), message)


def _describe_section(problem: Mapping[str, Any], section: type[BaseModel] | None, message: str) -> str:
    """Format the message about a value of a wrong type instead of a component or a section.

    Args:
        problem: Error of Pydantic.
        section: Class of the component or section; None if unknown.
        message: Message without the keys.
    """
    if section is None:
        return message
    value, fields = problem["input"], section.model_fields
    key = ".".join(part for part in problem["loc"] if isinstance(part, str))  # no indices of lists
    if section.model_config.get("extra") == "allow" and "name" in fields:
        message = message.replace("a mapping is expected", "the name of a component is expected")
        message = message.replace("a list is expected", "a list of names of components is expected")
        return f"{message}; docs/reference/keys.md has names for {key}"
    if problem["type"] == "list_type":
        return message
    if "weight" in fields and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{message}; set {key}.weight={value} (keys below it are {', '.join(fields)})"
    return f"{message}; keys below it are {', '.join(fields)}"


def _suggest_name(part: Any) -> str:
    """Format the end of the message about a component without a name.

    >>> _suggest_name({"nam": "entropy"}), _suggest_name({"entropy": 0.01})
    ('; did you mean "name" instead of "nam"?', '; write {name: entropy, …} for the component "entropy"')
    """
    keys = [str(key) for key in part] if isinstance(part, Mapping) else []
    if near := difflib.get_close_matches("name", keys, n=1, cutoff=0.7):
        return f'; did you mean "name" instead of "{near[0]}"?'
    return f'; write {{name: {keys[0]}, …}} for the component "{keys[0]}"' if keys else ""


def find_renamed_keys(keys: Any, above: tuple[str, ...] = ()) -> Iterator[OptionError]:
    """Yield an error for each recipe key that was renamed since an earlier release.

    Sections that accept any option are checked too.

    Args:
        keys: Nested recipe keys.
        above: Path of `keys` in the recipe.
    """
    for each in keys if isinstance(keys, list) else ():
        yield from find_renamed_keys(each, above)
    for key, value in keys.items() if isinstance(keys, Mapping) else ():
        path = (*above, str(key))
        new = renamed_key(".".join(path))
        if new is None:
            yield from find_renamed_keys(value, path)
        else:
            yield OptionError(".".join(path), f"renamed to {new}")


def find_unknown_nulls(
    model: type[BaseModel], keys: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[OptionError]:
    """Yield an error for each unknown recipe key whose value is null.

    Sections that accept any option are skipped.

    Args:
        model: Settings class of the section.
        keys: Nested keys of the section.
        above: Path of the section in the recipe.
    """
    if model.model_config.get("extra") != "forbid":
        return
    for key, value in keys.items():
        path = (*above, key)
        field = model.model_fields.get(key)
        if field is None and value is None:
            near = explain_unknown_key(key, value, _list_fields(model), keys, ".".join(above))
            yield OptionError(".".join(path), f"no such key{near}")
        elif field is not None and isinstance(value, Mapping):
            for below in find_settings_models(field.annotation):
                yield from find_unknown_nulls(below, value, path)


def _fields_at(model: type[BaseModel], path: Sequence[int | str]) -> dict[str, Callable[[], Mapping[str, Any]]]:
    section = _model_at(model, path)
    return {} if section is None else _list_fields(section)


def _model_at(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the settings class at a path of keys, list indices and names in mappings; None if there is none."""
    section: type[BaseModel] | None = model
    is_name = False
    for part in path:
        if is_name or isinstance(part, int):
            is_name = False
            continue
        field = section.model_fields.get(part) if section is not None else None
        section = next(_find_nested_models(field.annotation), None) if field is not None else None
        is_name = field is not None and get_origin(field.annotation) is dict
    return section


def _find_nested_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes in a type annotation, also in lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _find_nested_models(inner)


def _list_fields(model: type[BaseModel]) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Return the keys of a settings class: key → function that returns the keys below it."""

    def keys_below(annotation: Any) -> Callable[[], Mapping[str, Any]]:
        return lambda: next((below.model_fields for below in find_settings_models(annotation)), {})

    return {name: keys_below(field.annotation) for name, field in model.model_fields.items()}


def find_settings_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes in the type annotation of a field."""
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind
