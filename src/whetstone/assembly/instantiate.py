"""Construction of components from names and options; errors name the recipe's line."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.environments.protocol import optional_protocols
from whetstone.errors import EngineError, RecipeError
from whetstone.plugins import (
    OptionalProtocols,
    OptionError,
    check_interface,
    find_part,
    get_component_options,
    instantiate_component,
    validate_options,
)
from whetstone.recipe import Part, Resolved, built_in_methods
from whetstone.rollout.optional_protocols import KINDS
from whetstone.rollout.optional_protocols import OPTIONAL as ROLLOUT_OPTIONAL
from whetstone.tasks.protocol import OPTIONAL as SOURCE_OPTIONAL

_OPTIONAL: Mapping[str, OptionalProtocols] = {
    "environment": optional_protocols,
    "task source": SOURCE_OPTIONAL,
    **dict.fromkeys(KINDS, ROLLOUT_OPTIONAL),
}
"""Optional protocols that a component can implement, by kind of component."""


def build_function(
    resolved: Resolved, section: str, part: Part, built_in: Mapping[str, Any], *, kind: str | None = None
) -> Any:
    """Look up a function by name, and bind the options of the recipe.

    Args:
        resolved: Recipe, for the location in errors.
        section: Recipe key of the component, such as `advantage`.
        part: Name and options of the component.
        built_in: Built-in functions by name.
        kind: Kind of component in error messages; None: `section`.

    Raises:
        RecipeError: If no function has the name, or an option is wrong.
    """
    named = lookup_component(resolved, section, kind or section, part.name, built_in)
    own_keys = [key for key in type(part).model_fields if key != "name"]
    options = validate_recipe_options(resolved, section, named, part.options, keys_beside=own_keys)
    return functools.partial(named, **options) if options else named


def lookup_component(resolved: Resolved, key: str, kind: str, name: str, built_in: Mapping[str, Any]) -> Any:
    """Look up a built-in component by name, or a custom one by `package.module:name`.

    Args:
        resolved: Recipe, for the location in errors.
        key: Recipe key of the name.
        kind: Kind of component in error messages.
        name: Name of the component.
        built_in: Built-in components by name.

    Raises:
        RecipeError: If no component has the name; the message has the nearest one.
    """
    try:
        return find_part(kind, name, built_in, optional=_OPTIONAL.get(kind, ()))
    except RecipeError as error:
        method = name.lower().replace("_", "-")
        if ":" not in name and method in built_in_methods():
            raise resolved.error(key, f'"{name}" is a method, not an {kind}; use with={method}') from None
        raise resolved.error(key, str(error)) from None


def validate_recipe_options(
    resolved: Resolved, section: str, part: Any, options: Mapping[str, Any], *, keys_beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Validate options, and convert them to the types that the component declares.

    Args:
        resolved: Recipe, for the location in errors.
        section: Recipe key of the component.
        part: Function or class that declares the options.
        options: Options by name.
        keys_beside: Keys of the recipe next to the options, suggested if an option has a similar name.

    Raises:
        RecipeError: If an option is unknown or has a wrong type.
    """
    try:
        return validate_options(part, options, keys_beside=keys_beside)
    except OptionError as error:
        raise resolved.error(f"{section}.{error.key}", error.message) from None


def build_component(
    resolved: Resolved,
    key: str,
    kind: str,
    part: Part,
    built_in: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    protocol: type | None = None,
    named_at: str | None = None,
) -> Any:
    """Create an instance of a component with its options from the recipe.

    Args:
        resolved: Recipe, for the location in errors.
        key: Recipe key of the options.
        kind: Kind of component in error messages.
        part: Name and options of the component.
        built_in: Built-in components by name.
        given: Values that the run provides, such as `seed`; each is passed if the component has a parameter of this
            name.
        protocol: Protocol that the component must implement; None: any.
        named_at: Recipe key of the name, if it differs from `key`.

    Raises:
        RecipeError: If no component has the name, an option is wrong, or the protocol is not implemented.
    """
    named = lookup_component(resolved, named_at or key, kind, part.name, built_in)
    known = get_component_options(named)
    passed = {name: value for name, value in given.items() if name in known and name not in part.options}
    try:
        arguments = validate_options(named, part.options, passed)
        component = instantiate_component(kind, part.name, named, arguments, optional=_OPTIONAL.get(kind, ()))
        if protocol is not None:
            check_interface(component, protocol, kind, part.name)
    except OptionError as error:
        raise resolved.error(f"{key}.{error.key}", error.message) from None
    except (RecipeError, EngineError, ValueError) as error:
        raise resolved.error(key, str(error)) from None
    return component
