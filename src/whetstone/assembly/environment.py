"""Where does an episode of a recipe happen? Its environment, with the tools, the user and the faults it names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from whetstone.assembly.frozen_models import frozen_models
from whetstone.assembly.instantiate import found
from whetstone.chat import Message
from whetstone.contracts import fulfils
from whetstone.environments import ENVIRONMENTS, USERS, Environment, Noisy, is_game, played
from whetstone.environments.advised import Advised
from whetstone.environments.dependencies import check_needs
from whetstone.environments.protocol import (
    OPTIONAL_OF_USERS,
    Checks,
    HoldsTools,
    Needs,
    Observation,
    StepResult,
    optional_protocols,
)
from whetstone.errors import EpisodeError, RecipeError, did_you_mean
from whetstone.plugins import OptionError, checked_options, made_of, named_part, options_of, unbound
from whetstone.provenance import Provenance
from whetstone.recipe import Resolved
from whetstone.recipe.settings import EnvironmentSettings
from whetstone.tools import TOOLS, CallPolicy, Effect, FrozenModel, Toolset
from whetstone.tools.protocol import OPTIONAL as TOOL_OPTIONAL
from whetstone.tools.protocol import provenance_of
from whetstone.tools.side_effects import DeclaresEffects, declared_effect, describe_effects, describe_remedy
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import Task


def run_policy(resolved: Resolved) -> CallPolicy:
    """Return which tools a run of a recipe calls: those that it permits, and those of unknown effect."""
    settings = resolved.recipe.environment
    allowed = settings.allow_effects
    return CallPolicy(
        tuple(allowed) if isinstance(allowed, list) else bool(allowed), effects=dict(settings.effects or {})
    )


def environment_of(
    resolved: Resolved, calls: CallPolicy | None = None, *, models: Mapping[str, FrozenModel] | None = None
) -> Callable[[], Environment]:
    """Return a function that creates the environment of an episode.

    Args:
        calls: Tools that are called; None: those that a run calls.
        models: Frozen models of the recipe, if they are built already.

    Raises:
        RecipeError: No environment has the name, or an option is wrong.
    """
    resolved.check_variables()
    taken = _Taken(frozen_models(resolved) if models is None else models)
    settings = resolved.recipe.environment
    made = _made(resolved, "environment", settings.name, settings.options, taken)
    seated = resolved.recipe.rollout.strategy.options.get("frozen") or {}
    if taken.known and not taken.asked and not set(seated.values()) & set(taken.known):
        raise resolved.error(
            "models", "has no effect: no tool asks them (tools: [models]), nor does environment or seat"
        )
    policy = run_policy(resolved) if calls is None else replace(calls, effects=dict(settings.effects or {}))
    permitted = functools.partial(gated, made, settings.name, policy)
    built = permitted()
    _check_names(resolved, built)
    try:
        provenance_of(built)
    except ValueError as error:
        raise resolved.error("environment", f"provenance: {error}; use one of {', '.join(Provenance)}") from None
    if settings.fault_injection is None:
        return permitted
    return functools.partial(_noisy, permitted, settings.fault_injection.model_dump())


def gated(make: Callable[[], Environment], name: str, calls: CallPolicy) -> Environment:
    """Return a new environment whose tools are called as a policy permits.

    Args:
        name: Name of the environment, by which its own effect is permitted.
    """
    environment = make()
    inner = environment.world if isinstance(environment, Advised) else environment
    if fulfils(inner, HoldsTools) and isinstance(inner.toolset, Toolset):
        inner.toolset.calls = calls
    declared = declared_effect(environment, name) if fulfils(environment, DeclaresEffects) else "read"
    own = {name: calls.effect_of(name, declared)}
    if not calls.refused(own):
        return environment
    return NotPlayed(environment, f"{describe_effects(own)}; {describe_remedy(own)}")


def effects_in(environment: Environment, settings: EnvironmentSettings) -> dict[str, Effect | None]:
    """Return the effects of the tools of an environment, and that of the environment itself if it declares one."""
    inner = environment.world if isinstance(environment, Advised) else environment
    effects = dict(inner.toolset.effects) if fulfils(inner, HoldsTools) and isinstance(inner.toolset, Toolset) else {}
    name = settings.name
    own = {name: declared_effect(environment, name)} if fulfils(environment, DeclaresEffects) else {}
    declared = settings.effects or {}
    return {**effects, **own, **{tool: declared[tool] for tool in declared if tool in (*effects, name)}}


class NotPlayed:
    """An environment that is not played, because nothing permits its effect.

    Args:
        environment: The environment.
        why: Reason, for the error of each episode.
    """

    def __init__(self, environment: Environment, why: str) -> None:
        self.environment, self.why = environment, why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of a copy or a pickle, which has no attribute yet
            raise AttributeError(name)
        return getattr(self.environment, name)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Refuse.

        Raises:
            EpisodeError: In each case.
        """
        raise EpisodeError(f"not played: {self.why}")

    async def step(self, action: Message) -> StepResult:
        """Refuse; see `reset`."""
        raise EpisodeError(f"not played: {self.why}")

    async def close(self) -> None:
        """Close the environment."""
        await call_user_function(self.environment.close)


def _check_names(resolved: Resolved, environment: Environment) -> None:
    """Check that `environment.effects` and `environment.allow_effects` name tools.

    Raises:
        RecipeError: A name is not that of a tool or of the environment.
    """
    settings = resolved.recipe.environment
    inner = environment.world if isinstance(environment, Advised) else environment
    if fulfils(inner, HoldsTools) and isinstance(inner.toolset, Toolset) and inner.toolset.changing:
        return  # an MCP server lists its tools later
    known = [*effects_in(environment, settings), settings.name]
    allowed = settings.allow_effects if isinstance(settings.allow_effects, list) else []
    for key, names in (("effects", settings.effects or {}), ("allow_effects", allowed)):
        for name in names:
            if name not in known:
                problem = f'there is no tool "{name}"{did_you_mean(name, known)}'
                raise resolved.error(f"environment.{key}", problem)


def _made(
    resolved: Resolved, key: str, name: str, options: dict[str, Any], models: _Taken
) -> Callable[[], Environment]:
    """Makes environments of a name, with what their options name made first."""
    part = found(resolved, key, "environment", name, ENVIRONMENTS)
    part = played(part) if is_game(part) else part
    if "tools" in options:
        if not isinstance(options["tools"], list):
            raise resolved.error(f"{key}.tools", f"a list of tools, got {options['tools']!r}")
        tools = [_tool(resolved, f"{key}.tools", number, named) for number, named in enumerate(options["tools"])]
        options["tools"] = [_with_models(tool, models) for tool in tools]
    if "user" in options:
        options["user"] = _user(resolved, f"{key}.user", options["user"])
    if part is Advised and "world" in options:
        options["world"] = _world(resolved, f"{key}.world", options["world"], models)
    given = {"models": models.taken()} if "models" in options_of(part) and "models" not in options else {}
    try:
        arguments = checked_options(part, options, given)
        kind = unbound(part)
        check_needs(name, kind.needs if fulfils(kind, Needs) else ())
        # one object for the checks; each episode creates its own
        tried = made_of("environment", name, part, arguments, optional=optional_protocols)
        if fulfils(tried, Checks):
            tried.check()
    except OptionError as error:
        raise resolved.error(f"{key}.{error.key}", error.message) from None
    except (RecipeError, ValueError) as error:
        raise resolved.error(key, str(error)) from None
    except ImportError as error:
        raise resolved.error(key, f'environment "{name}" needs a package that is not installed: {error}') from None
    return functools.partial(part, **arguments)


def _world(resolved: Resolved, key: str, named: Any, models: _Taken) -> Callable[[], Environment]:
    """An environment within another, from its name, or a mapping with that and its options."""
    options = dict(named) if isinstance(named, Mapping) else {"name": named}
    name = options.pop("name", "tools")
    if not isinstance(name, str):
        raise resolved.error(key, f"a world is a name, or a mapping with its name, got {named!r}")
    return _made(resolved, key, name, options, models)


class _Taken:
    """The models of a recipe, and whether anybody asks for them."""

    def __init__(self, known: Mapping[str, FrozenModel]) -> None:
        self.known, self.asked = known, False

    def taken(self) -> Mapping[str, FrozenModel]:
        self.asked = True
        return self.known


def _with_models(tool: Any, models: _Taken) -> Any:
    """A class of tools that has an option `models` is given the recipe's."""
    if not inspect.isclass(unbound(tool)) or "models" not in options_of(tool):
        return tool
    if isinstance(tool, functools.partial) and "models" in tool.keywords:
        return tool
    return functools.partial(tool, models=models.taken())


def _noisy(made: Callable[[], Environment], noise: Mapping[str, float]) -> Environment:
    return Noisy(made(), **noise)


def _user(resolved: Resolved, key: str, named: Any) -> Any:
    """Who is spoken to, with the options a recipe gives him."""
    try:
        return named_part("user", named, USERS, optional=OPTIONAL_OF_USERS)
    except OptionError as error:
        raise resolved.error(f"{key}.{error.key}", error.message) from None
    except RecipeError as error:
        raise resolved.error(key, str(error)) from None


def _tool(resolved: Resolved, key: str, number: int, named: Any) -> Any:
    """A function, or a class with the options a recipe gives it."""
    try:
        return named_part("tool", named, TOOLS, optional=TOOL_OPTIONAL)
    except OptionError as error:
        raise resolved.error(f"{key}.{number}.{error.key}", error.message) from None
    except RecipeError as error:
        raise resolved.error(key, str(error)) from None
