"""Where does an episode of a recipe happen? Its environment, with the tools, the user and the faults it names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from whetstone.assembly.instantiate import checked, found
from whetstone.contracts import fulfils
from whetstone.environments import ENVIRONMENTS, USERS, Environment, Noisy, is_game, played
from whetstone.environments.protocol import Checks
from whetstone.errors import RecipeError
from whetstone.plugins import OptionError, made_of, named_part
from whetstone.recipe import Resolved
from whetstone.tools import TOOLS


def environment_of(resolved: Resolved) -> Callable[[], Environment]:
    """Makes a fresh environment of a recipe for each episode.

    Raises:
        RecipeError: There is none of its name, or one cannot be made as it is to be.
    """
    settings = resolved.recipe.environment
    part = found(resolved, "environment", "environment", settings.name, ENVIRONMENTS)
    part = played(part) if is_game(part) else part
    options = settings.options
    if "tools" in options:
        if not isinstance(options["tools"], list):
            raise resolved.error("environment.tools", f"a list of tools, got {options['tools']!r}")
        options["tools"] = [_tool(resolved, number, named) for number, named in enumerate(options["tools"])]
    if "user" in options:
        options["user"] = _user(resolved, options["user"])
    arguments = checked(resolved, "environment", part, options)
    try:
        tried = made_of("environment", settings.name, part, arguments)  # once to see; each episode makes its own
        if fulfils(tried, Checks):
            tried.check()
    except OptionError as error:
        raise resolved.error(f"environment.{error.key}", error.message) from None
    except (RecipeError, ValueError) as error:
        raise resolved.error("environment", str(error)) from None
    made: Callable[[], Environment] = functools.partial(part, **arguments)
    if settings.noise is None:
        return made
    return functools.partial(_noisy, made, settings.noise.model_dump())


def _noisy(made: Callable[[], Environment], noise: Mapping[str, float]) -> Environment:
    return Noisy(made(), **noise)


def _user(resolved: Resolved, named: Any) -> Any:
    """Who is spoken to, with the options a recipe gives him."""
    try:
        return named_part("user", named, USERS)
    except OptionError as error:
        raise resolved.error(f"environment.user.{error.key}", error.message) from None
    except RecipeError as error:
        raise resolved.error("environment.user", str(error)) from None


def _tool(resolved: Resolved, number: int, named: Any) -> Any:
    """A function, or a class with the options a recipe gives it."""
    try:
        return named_part("tool", named, TOOLS)
    except OptionError as error:
        raise resolved.error(f"environment.tools.{number}.{error.key}", error.message) from None
    except RecipeError as error:
        raise resolved.error("environment.tools", str(error)) from None
