"""Construction of a recipe's environment, with tools, user and fault injection."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from whetstone.assembly.frozen_models import frozen_models
from whetstone.assembly.instantiate import lookup_component
from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, ToolSpec
from whetstone.environments import ENVIRONMENTS, USERS, Environment, Noisy, as_environment, is_game
from whetstone.environments.advisor import Advised
from whetstone.environments.dependencies import check_requirements
from whetstone.environments.protocol import (
    OPTIONAL_OF_USERS,
    HasRequirements,
    HoldsTools,
    Observation,
    SelfChecking,
    StepResult,
    find_known_tools,
    optional_protocols,
)
from whetstone.errors import EpisodeError, RecipeError, did_you_mean
from whetstone.own_loop import run_sync
from whetstone.plugins import (
    OptionError,
    bind_component,
    check_interface,
    get_component_options,
    instantiate_component,
    unwrap_partial,
    validate_options,
)
from whetstone.provenance import Provenance
from whetstone.recipe import Resolved
from whetstone.recipe.settings import EnvironmentSettings
from whetstone.tools import TOOLS, CallPolicy, Effect, FrozenModel, Toolset
from whetstone.tools.protocol import OPTIONAL as TOOL_OPTIONAL
from whetstone.tools.protocol import find_provenance
from whetstone.tools.side_effects import DeclaresEffects, declared_effect, describe_effects, describe_remedy
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task


def run_policy(resolved: Resolved) -> CallPolicy:
    """Return the call policy of a run.

    Tools whose effects the recipe permits are called, and tools whose effects are unknown.
    """
    settings = resolved.recipe.environment
    allowed = settings.allow_effects
    return CallPolicy(
        tuple(allowed) if isinstance(allowed, list) else bool(allowed), effects=dict(settings.effects or {})
    )


def build_environment(
    resolved: Resolved, calls: CallPolicy | None = None, *, models: Mapping[str, FrozenModel] | None = None
) -> Callable[[], Environment]:
    """Return a function without arguments that creates the environment of one episode.

    Args:
        resolved: Recipe.
        calls: Policy that decides which tools are really called; None: the call policy of a run.
        models: Frozen models of the recipe, if they are already built.

    Raises:
        RecipeError: If no environment has the name, or an option is wrong.
    """
    resolved.check_variables()
    taken = _ModelUse(frozen_models(resolved) if models is None else models)
    settings = resolved.recipe.environment
    make = _environment_factory(resolved, "environment", settings.name, settings.options, taken)
    rollout = resolved.recipe.rollout
    start = rollout.start_states.options.get("model") if rollout.start_states is not None else None
    used = {*(rollout.strategy.options.get("frozen") or {}).values(), start}
    if taken.known and not taken.asked and not used & set(taken.known):
        message = "has no effect: no tool (tools: [models]), environment, seat or start state uses them"
        raise resolved.error("models", message)
    policy = run_policy(resolved) if calls is None else replace(calls, effects=dict(settings.effects or {}))
    permitted = functools.partial(apply_call_policy, make, settings.name, policy)
    built = permitted()
    _check_names(resolved, built)
    try:
        find_provenance(built)
    except ValueError as error:
        raise resolved.error("environment", f"provenance: {error}; use one of {', '.join(Provenance)}") from None
    if settings.fault_injection is None:
        return permitted
    return functools.partial(_noisy, permitted, settings.fault_injection.model_dump())


def apply_call_policy(make: Callable[[], Environment], name: str, calls: CallPolicy) -> Environment:
    """Create an environment in which a call policy decides which tools are really called.

    Args:
        make: Function that creates the environment.
        name: Name of the environment, under which its own effect is permitted.
        calls: Call policy.

    Returns:
        The environment, or a `NotPlayed` if its own effect is not permitted.
    """
    environment = make()
    inner = environment.world if isinstance(environment, Advised) else environment
    if implements_protocol(inner, HoldsTools) and isinstance(inner.toolset, Toolset):
        inner.toolset.calls = calls
    declared = declared_effect(environment, name) if implements_protocol(environment, DeclaresEffects) else "read"
    own = {name: calls.effect_of(name, declared)}
    if not calls.refused(own):
        return environment
    return NotPlayed(environment, f"{describe_effects(own)}; {describe_remedy(own)}")


def find_tool_effects(environment: Environment, settings: EnvironmentSettings) -> dict[str, Effect | None]:
    """Return the side effects of the tools of an environment.

    Args:
        environment: Environment with its tools.
        settings: Settings whose `effects` override the declared effects.

    Returns:
        Tool → effect, None if unknown; with an entry for the environment itself if it declares an effect.
    """
    inner = environment.world if isinstance(environment, Advised) else environment
    effects = (
        dict(inner.toolset.effects)
        if implements_protocol(inner, HoldsTools) and isinstance(inner.toolset, Toolset)
        else {}
    )
    name = settings.name
    own = {name: declared_effect(environment, name)} if implements_protocol(environment, DeclaresEffects) else {}
    declared = settings.effects or {}
    return {**effects, **own, **{tool: declared[tool] for tool in declared if tool in (*effects, name)}}


def list_tools(make: Callable[[], Environment]) -> tuple[ToolSpec, ...]:
    """Create an environment, and return the tools that it offers.

    An MCP server is started to list its tools.

    Args:
        make: Function that creates the environment.

    Raises:
        InfrastructureError: If a server does not respond.
    """
    environment = make()
    inner = environment.world if isinstance(environment, Advised) else environment
    toolset = inner.toolset if implements_protocol(inner, HoldsTools) else None
    if isinstance(toolset, Toolset) and toolset.has_unlisted_tools:
        run_sync(toolset.list_effects)
        return toolset.specs
    return tuple(find_known_tools(environment))


class NotPlayed:
    """Environment that rejects every episode, because its side effects are forbidden.

    Args:
        environment: Environment that is not played.
        why: Reason, used as the error of each episode.
    """

    def __init__(self, environment: Environment, why: str) -> None:
        self.environment, self.why = environment, why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of a copy or a pickle, which has no attribute yet
            raise AttributeError(name)
        return getattr(self.environment, name)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Reject the episode.

        Raises:
            EpisodeError: Always.
        """
        raise EpisodeError(f"not played: {self.why}")

    async def step(self, action: Message) -> StepResult:
        """Reject the action, same as `reset`."""
        raise EpisodeError(f"not played: {self.why}")

    async def close(self) -> None:
        """Close the wrapped environment."""
        await call_user_function(self.environment.close)


def _check_names(resolved: Resolved, environment: Environment) -> None:
    """Check that `environment.effects` and `environment.allow_effects` name existing tools.

    Raises:
        RecipeError: If a name is neither a tool nor the environment.
    """
    settings = resolved.recipe.environment
    inner = environment.world if isinstance(environment, Advised) else environment
    if implements_protocol(inner, HoldsTools) and isinstance(inner.toolset, Toolset) and inner.toolset.changing:
        return  # an MCP server lists its tools later
    known = [*find_tool_effects(environment, settings), settings.name]
    allowed = settings.allow_effects if isinstance(settings.allow_effects, list) else []
    for key, names in (("effects", settings.effects or {}), ("allow_effects", allowed)):
        for name in names:
            if name not in known:
                problem = f'there is no tool "{name}"{did_you_mean(name, known)}'
                raise resolved.error(f"environment.{key}", problem)


def _environment_factory(
    resolved: Resolved, key: str, name: str, options: dict[str, Any], models: _ModelUse
) -> Callable[[], Environment]:
    """Return a function that creates an environment by name.

    Tools, users and inner environments that its options name are built too.
    """
    part = lookup_component(resolved, key, "environment", name, ENVIRONMENTS)
    part = as_environment(part) if is_game(part) else part
    if "tools" in options:
        if not isinstance(options["tools"], list):
            raise resolved.error(f"{key}.tools", f"expected a list of tools, got {options['tools']!r}")
        tools = [_tool(resolved, f"{key}.tools", number, named) for number, named in enumerate(options["tools"])]
        options["tools"] = [_with_models(tool, models) for tool in tools]
    if "user" in options:
        options["user"] = _user(resolved, f"{key}.user", options["user"])
    if part is Advised and "world" in options:
        options["world"] = _inner_environment(resolved, f"{key}.world", options["world"], models)
    models_option = (
        {"models": models.taken()} if "models" in get_component_options(part) and "models" not in options else {}
    )
    try:
        arguments = validate_options(part, options, models_option)
        kind = unwrap_partial(part)
        check_requirements(name, kind.needs if implements_protocol(kind, HasRequirements) else ())
        # one object for the checks; each episode creates its own
        tried = instantiate_component("environment", name, part, arguments, optional=optional_protocols)
        check_interface(tried, Environment, "environment", name)
        if implements_protocol(tried, SelfChecking):
            tried.check()
    except OptionError as error:
        raise resolved.error(f"{key}.{error.key}", error.message) from None
    except (RecipeError, ValueError) as error:
        raise resolved.error(key, str(error)) from None
    except ImportError as error:
        raise resolved.error(key, f'environment "{name}" needs a package that is not installed: {error}') from None
    return functools.partial(part, **arguments)


def _inner_environment(resolved: Resolved, key: str, named: Any, models: _ModelUse) -> Callable[[], Environment]:
    """Return a function that creates the inner environment of a wrapper.

    Args:
        resolved: Recipe, for the location in errors.
        key: Recipe key of the inner environment.
        named: Name, or a mapping with `name` and options.
        models: Frozen models of the recipe.
    """
    options = dict(named) if isinstance(named, Mapping) else {"name": named}
    name = options.pop("name", "tools")
    if not isinstance(name, str):
        raise resolved.error(key, f"expected a name, or a mapping with its name, got {named!r}")
    return _environment_factory(resolved, key, name, options, models)


class _ModelUse:
    """Frozen models of a recipe, with a record of whether a component uses them."""

    def __init__(self, known: Mapping[str, FrozenModel]) -> None:
        self.known, self.asked = known, False

    def taken(self) -> Mapping[str, FrozenModel]:
        self.asked = True
        return self.known


def _with_models(tool: Any, models: _ModelUse) -> Any:
    """Pass the recipe's frozen models to a tool class that has the option `models`."""
    if not inspect.isclass(unwrap_partial(tool)) or "models" not in get_component_options(tool):
        return tool
    if isinstance(tool, functools.partial) and "models" in tool.keywords:
        return tool
    return functools.partial(tool, models=models.taken())


def _noisy(make: Callable[[], Environment], noise: Mapping[str, float]) -> Environment:
    return Noisy(make(), **noise)


def _user(resolved: Resolved, key: str, named: Any) -> Any:
    """Build the simulated user of an environment, with its options from the recipe."""
    try:
        return bind_component("user", named, USERS, optional=OPTIONAL_OF_USERS)
    except OptionError as error:
        raise resolved.error(f"{key}.{error.key}", error.message) from None
    except RecipeError as error:
        raise resolved.error(key, str(error)) from None


def _tool(resolved: Resolved, key: str, number: int, named: Any) -> Any:
    """Build one entry of `environment.tools`, a function or a class with options."""
    try:
        return bind_component("tool", named, TOOLS, optional=TOOL_OPTIONAL)
    except OptionError as error:
        raise resolved.error(f"{key}.{number}.{error.key}", error.message) from None
    except RecipeError as error:
        raise resolved.error(key, str(error)) from None
