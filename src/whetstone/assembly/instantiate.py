"""Creates components from their names and options in a recipe. Errors name the line of the recipe."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from whetstone.environments.protocol import optional_protocols
from whetstone.errors import EngineError, RecipeError
from whetstone.plugins import (
    OptionalProtocols,
    OptionError,
    checked_options,
    find_part,
    has_all_of,
    made_of,
    options_of,
)
from whetstone.recipe import Part, Resolved, built_in_methods
from whetstone.rollout.optional import KINDS
from whetstone.rollout.optional import OPTIONAL as ROLLOUT_OPTIONAL
from whetstone.tasks.protocol import OPTIONAL as SOURCE_OPTIONAL

_OPTIONAL: Mapping[str, OptionalProtocols] = {
    "environment": optional_protocols,
    "task source": SOURCE_OPTIONAL,
    **dict.fromkeys(KINDS, ROLLOUT_OPTIONAL),
}
"""Optional protocols by the kind of a component."""


def function_of(
    resolved: Resolved, section: str, part: Part, built_in: Mapping[str, Any], *, kind: str | None = None
) -> Any:
    """The named function with the recipe's options bound."""
    named = found(resolved, section, kind or section, part.name, built_in)
    options = checked(resolved, section, named, part.options)
    return functools.partial(named, **options) if options else named


def found(resolved: Resolved, key: str, kind: str, name: str, built_in: Mapping[str, Any]) -> Any:
    """What a name stands for."""
    try:
        return find_part(kind, name, built_in, optional=_OPTIONAL.get(kind, ()))
    except RecipeError as error:
        method = name.lower().replace("_", "-")
        if ":" not in name and method in built_in_methods():
            raise resolved.error(key, f'"{name}" is a method, not an {kind}; use with={method}') from None
        raise resolved.error(key, str(error)) from None


def checked(resolved: Resolved, section: str, part: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the types the part asks for."""
    try:
        return checked_options(part, options)
    except OptionError as error:
        raise resolved.error(f"{section}.{error.key}", error.message) from None


def part_of(
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
    """An instance of the class a part names, with its options; what is `given` is passed where it is asked for.

    Args:
        protocol: Names what it must have; None: nothing is asked.
        key: Where its options are written.
        named_at: Where its name is, if that is another key.
    """
    named = found(resolved, named_at or key, kind, part.name, built_in)
    known = options_of(named)
    passed = {name: value for name, value in given.items() if name in known and name not in part.options}
    try:
        arguments = checked_options(named, part.options, passed)
        made = made_of(kind, part.name, named, arguments, optional=_OPTIONAL.get(kind, ()))
        if protocol is not None:
            has_all_of(made, protocol, kind, part.name)
    except OptionError as error:
        raise resolved.error(f"{key}.{error.key}", error.message) from None
    except (RecipeError, EngineError, ValueError) as error:
        raise resolved.error(key, str(error)) from None
    return made
