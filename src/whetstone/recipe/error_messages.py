"""Error messages for invalid recipe keys, with the nearest valid key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from whetstone.errors import did_you_mean
from whetstone.masking import mask_secrets
from whetstone.plugins import OptionError, format_validation_error
from whetstone.recipe.importers.names import explain_unknown_key
from whetstone.recipe.settings_base import Part
from whetstone.renames import renamed_key

_MAX_KEYS = 12
"""Number of further keys of a section that a message lists."""


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
        message = _describe_section(message, model, problem)
    elif problem["type"] == "missing" and last == "name":
        message += _suggest_name(problem["input"])
    return OptionError(".".join(map(str, problem["loc"])), message)


def _describe_section(message: str, model: type[BaseModel], problem: Mapping[str, Any]) -> str:
    """Format the message about a value of a wrong type instead of a component or a section, with the nearest value.

    Args:
        message: Message without the keys.
        model: Settings class of the document.
        problem: Error of Pydantic.
    """
    path, value, section = problem["loc"], problem["input"], _model_at(model, problem["loc"])
    if section is None:
        return message
    key, fields = ".".join(part for part in path if isinstance(part, str)), section.model_fields  # no indices of lists
    field = (_model_at(model, path[:-1]) or model).model_fields.get(str(path[-1]))
    if value is False and field is not None and field.default is None:
        return f"{message}; {key}=null disables it"
    if issubclass(section, Part):
        message = message.replace("a mapping is expected", "the name of a component is expected")
        message = message.replace("a list is expected", "a list of names of components is expected")
        return f"{message}; docs/reference/keys.md has names for {key}"
    if problem["type"] == "list_type":
        return message
    first, *others = fields
    more = ", …" if len(others) > _MAX_KEYS else ""
    message += f"; keys below it are {', '.join([first, *others[:_MAX_KEYS]])}{more}"
    if value is True and not any(below.is_required() for below in fields.values()):
        return f"{message}; did you mean {key}={{}}?"
    try:
        section.model_validate({first: value})
    except (ValidationError, OptionError):
        return message
    return f"{message}; did you mean {key}.{first}={mask_secrets(str(value))[:60]}?"


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
            near = explain_unknown_key(key, value, list_fields(model), keys, ".".join(above))
            yield OptionError(".".join(path), f"no such key{near}")
        elif field is not None and isinstance(value, Mapping):
            sections = {name: each for name, each in value.items() if isinstance(each, Mapping)}
            for below in find_settings_models(field.annotation):
                for name, section in sections.items() if _is_container(field.annotation) else (("", value),):
                    yield from find_unknown_nulls(below, section, (*path, name) if name else path)


def _fields_at(model: type[BaseModel], path: Sequence[int | str]) -> dict[str, Callable[[], Mapping[str, Any]]]:
    section = _model_at(model, path)
    return list_fields(section) if section is not None else {}


def _model_at(model: type[BaseModel] | None, path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the settings class of a section; None if the path is no section.

    In a mapping or list of sections, such as `policies`, the part after the field is the key or index of a section.
    """
    parts = iter(path)
    for part in parts:
        field = model.model_fields.get(str(part)) if model is not None else None
        if field is None:
            return None
        model = next(find_settings_models(field.annotation), None)
        if _is_container(field.annotation):
            next(parts, None)
    return model


def _is_container(annotation: Any) -> bool:
    """Return whether the type annotation of a field is a mapping or list, which can contain settings classes."""
    return isinstance(get_origin(annotation), type) and issubclass(get_origin(annotation), Mapping | list | tuple)


def list_fields(model: type[BaseModel]) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Return the keys of a settings class: key → function that returns the keys below it.

    Args:
        model: The settings class.
    """

    def keys_below(annotation: Any) -> Callable[[], Mapping[str, Any]]:
        return lambda: next((below.model_fields for below in find_settings_models(annotation)), {})

    return {name: keys_below(field.annotation) for name, field in model.model_fields.items()}


def find_settings_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes in the type annotation of a field, also in lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from find_settings_models(inner)
