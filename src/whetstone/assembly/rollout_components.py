"""Construction and compatibility checks of a recipe's rollout components.

Rollout components are the strategy, curriculum, replay, filters and others.

Note:
    Impossible combinations must be rejected before anything is sampled: a fork of an environment that cannot be
    restored, a replay without the log-probs that its correction needs, or a rule that depends on timing in a
    deterministic run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from whetstone.assembly.instantiate import build_component
from whetstone.assembly.offline_data import StoredReader
from whetstone.capabilities import implements_protocol
from whetstone.data import StoredMixture
from whetstone.environments import Environment
from whetstone.environments.game_environment import GameEnvironment, game_commands
from whetstone.environments.multi_agent import ListsMoves, Seat
from whetstone.environments.protocol import HasAdmissibleActions, Seats, TakesSeat, supports_forking
from whetstone.errors import TaskError
from whetstone.inference.kv_cache import bytes_per_token
from whetstone.plugins import unwrap_partial
from whetstone.policies import Policy, free_memory
from whetstone.recipe import DataSettings, Part, Recipe, Resolved, StoredMixtureSettings
from whetstone.recipe.settings import MIN_AUTO_EPISODES
from whetstone.rollout import MethodComponents, Strategy
from whetstone.rollout.action_masks import ACTION_MASKS, AdmissibleActions
from whetstone.rollout.budget_allocation import ALLOCATIONS
from whetstone.rollout.concurrency import ConcurrencyController
from whetstone.rollout.context_rewrites import REWRITES
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.early_stopping import STOPS
from whetstone.rollout.environment_wrappers import ENVIRONMENT_WRAPPERS
from whetstone.rollout.group_sources import GroupSource, ImaginedGroups, MixedSource
from whetstone.rollout.method import ROLLOUT_KEYS
from whetstone.rollout.optional_protocols import ChecksSource, KeyedBy, StatelessOnly, TimingDependent, can_fork
from whetstone.rollout.protocol import (
    ActionMask,
    Allocation,
    ContextTransform,
    DynamicSampling,
    EnvironmentWrapper,
    Rewrite,
    Start,
    Stop,
    TrajectoryFilter,
    TrajectoryReplay,
)
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.start_states import STARTS
from whetstone.rollout.strategies import SEARCHES, STRATEGIES
from whetstone.rollout.task_keys import task_key
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks import CURRICULA, Curriculum, Source
from whetstone.tools import FrozenModel
from whetstone.tools.protocol import is_stateless
from whetstone.trajectory import Group, OffPolicy


def build_strategy(resolved: Resolved, source: Source, vocabulary: int) -> Strategy:
    """Build the rollout strategy, which samples the trajectories of a task.

    Args:
        resolved: Recipe.
        source: Task source.
        vocabulary: Number of tokens in the policy's vocabulary.

    Raises:
        RecipeError: If the name or an option is wrong.
    """
    part = resolved.recipe.rollout.strategy
    arguments = _arguments(resolved, source, vocabulary)
    strategy: Strategy = build_component(
        resolved, "rollout.strategy", "strategy", part, STRATEGIES, arguments, protocol=Strategy
    )
    return strategy


def build_evaluation_strategy(resolved: Resolved) -> Strategy | None:
    """Build the evaluation strategy, which combines several attempts into one answer.

    None if the recipe has no `evaluation.strategy`; each attempt is then scored.
    """
    part = resolved.recipe.evaluation.strategy
    if part is None:
        return None
    strategy: Strategy = build_component(
        resolved, "evaluation.strategy", "strategy", part, SEARCHES, {}, protocol=Strategy
    )
    return strategy


def build_method(
    resolved: Resolved,
    source: Source,
    vocabulary: int,
    reader: StoredReader,
    environment_with: Callable[[Mapping[str, Any]], Callable[[], Environment]],
    models: Mapping[str, FrozenModel] | None = None,
) -> MethodComponents:
    """Build the rollout components of a recipe other than its strategy.

    Args:
        resolved: Recipe.
        source: Task source.
        vocabulary: Number of tokens in the policy's vocabulary.
        reader: Reader of stored episodes.
        environment_with: Function that returns an environment factory for changed settings, given by recipe key.
        models: Frozen models of the recipe, by name.

    Raises:
        RecipeError: If a name or option is wrong.
    """
    recipe, rollout, arguments_by_name = (
        resolved.recipe,
        resolved.recipe.rollout,
        _arguments(resolved, source, vocabulary),
    )
    sources = _sources(resolved, reader, environment_with)
    stored = sources["stored"].source if "stored" in sources else None
    arguments_by_name["models"] = models
    arguments_by_name["stored_groups"] = stored.get_all_groups if isinstance(stored, StoredMixture) else None

    def one(key: str, part: Part | None, protocol: type, built_in: Mapping[str, Any]) -> Any:
        kind = re.sub(r"(?<!^)(?=[A-Z])", " ", protocol.__name__).lower()
        return (
            None
            if part is None
            else build_component(resolved, key, kind, part, built_in, arguments_by_name, protocol=protocol)
        )

    def some(key: str, parts: Sequence[Part], protocol: type, built_in: Mapping[str, Any]) -> dict[str, Any]:
        components: dict[str, Any] = {}
        for k, part in enumerate(parts):
            if part.name in components:
                raise resolved.error(f"rollout.{key}.{k}", f'"{part.name}" is listed twice')
            components[part.name] = one(f"rollout.{key}.{k}", part, protocol, built_in)
        return components

    return MethodComponents(
        curriculum=one("curriculum", recipe.curriculum, Curriculum, CURRICULA),
        allocate=one("rollout.budget_allocation", rollout.budget_allocation, Allocation, ALLOCATIONS),
        start=one("rollout.start_states", rollout.start_states, Start, STARTS),
        context_transforms=some("context_transforms", rollout.context_transforms, ContextTransform, CONTEXT_TRANSFORMS),
        stops=some("early_stopping", rollout.early_stopping, Stop, STOPS),
        rewrites=some("context_rewrites", rollout.context_rewrites, Rewrite, REWRITES),
        environment_wrapper=one(
            "rollout.environment_wrapper", rollout.environment_wrapper, EnvironmentWrapper, ENVIRONMENT_WRAPPERS
        ),
        action_mask=one("rollout.action_mask", rollout.action_mask, ActionMask, ACTION_MASKS),
        replay=some("replay", rollout.replay, TrajectoryReplay, REPLAY),
        trajectory_filters=some("trajectory_filters", rollout.trajectory_filters, TrajectoryFilter, TRAJECTORY_FILTERS),
        dynamic_sampling=one("rollout.dynamic_sampling", rollout.dynamic_sampling, DynamicSampling, DYNAMIC_SAMPLING),
        overflow=rollout.on_context_overflow,
        stop_control_fraction=rollout.early_stopping_control_fraction,
        sources=sources,
    )


def _stored(resolved: Resolved, reader: StoredReader) -> StoredMixture | None:
    """Build the mixture of stored and fresh episodes (`reinforcement.offline_mixture`).

    None if the recipe has none. The files are opened when episodes are first sampled.
    """
    reinforcement = resolved.recipe.reinforcement
    if reinforcement is None or reinforcement.offline_mixture is None:
        return None
    settings = reinforcement.offline_mixture

    def read() -> list[list[Group]]:
        return [reader.groups(data, f"reinforcement.offline_mixture.data.{k}") for k, data in enumerate(settings.data)]

    for k, data in enumerate(settings.data):
        if data.balance_tasks:
            key = f"reinforcement.offline_mixture.data.{k}.balance_tasks"
            raise resolved.error(key, "has no effect: an update samples whole tasks")
    return StoredMixture(read, settings, seed=resolved.recipe.seed)


def _stored_source(
    *,
    reader: StoredReader,
    seed: int,
    data: str,
    sampling: Literal["uniform", "reward", "recency", "improvement"] = "uniform",
) -> StoredMixture:
    """Stored groups of a run or a file of trajectories, as a group source.

    They are sampled like `reinforcement.offline_mixture`.
    """
    settings = StoredMixtureSettings(data=[DataSettings(path=data)], sampling=sampling)
    return StoredMixture(lambda: [reader.groups(settings.data[0], "reinforcement.sources")], settings, seed=seed)


def _imagined_source(
    *, environment_with: Callable[[Mapping[str, Any]], Callable[[], Environment]], environment: dict[str, Any]
) -> ImaginedGroups:
    """Groups that the policy plays in the recipe's environment with other settings.

    For example, `environment: {tools: [{name: simulated, …}]}` lets a model answer for the tools.
    """
    return ImaginedGroups(environment_with({f"environment.{key}": value for key, value in environment.items()}))


GROUP_SOURCES = {"stored": _stored_source, "imagined": _imagined_source}


def _sources(
    resolved: Resolved,
    reader: StoredReader,
    environment_with: Callable[[Mapping[str, Any]], Callable[[], Environment]],
) -> dict[str, MixedSource]:
    """Build the group sources of `reinforcement.sources`, by name.

    `reinforcement.offline_mixture` is the source named `stored`.
    """
    sources: dict[str, MixedSource] = {}
    reinforcement, stored = resolved.recipe.reinforcement, _stored(resolved, reader)
    if reinforcement is None:
        return sources
    if stored is not None:
        settings = stored.settings
        sources["stored"] = MixedSource(stored, settings.fraction, mixture=settings, off_policy=stored.off_policy)
    arguments = {"reader": reader, "seed": resolved.recipe.seed, "environment_with": environment_with}
    for name, each in reinforcement.sources.items():
        key = f"reinforcement.sources.{name}.source"
        source = build_component(
            resolved, key, "group source", each.source, GROUP_SOURCES, arguments, protocol=GroupSource
        )
        sources[name] = MixedSource(source, each.fraction, each.timeout_seconds)
    return sources


def check_method(
    resolved: Resolved,
    strategy: Strategy,
    method: MethodComponents,
    source: Source,
    environment: Callable[[], Environment],
) -> None:
    """Reject rollout components that are incompatible with each other or the environment.

    Args:
        resolved: Recipe.
        strategy: Rollout strategy.
        method: Other rollout components.
        source: Task source.
        environment: Function that creates an environment.

    Raises:
        RecipeError: If two components are incompatible; the message states a remedy.
    """
    recipe = resolved.recipe
    for name, part in (("strategy", strategy), *method.named_components()):
        kind, dot, own = name.partition(".")
        of_rollout = f"rollout.{ROLLOUT_KEYS.get(kind, kind)}{dot}{own}"
        of_rollout = f"reinforcement.{name}" if kind == "sources" else of_rollout
        key = {"curriculum": name, "stored": "reinforcement.offline_mixture"}.get(name, of_rollout)
        try:
            if implements_protocol(part, ChecksSource):
                part.check(source, 0)
            if implements_protocol(part, KeyedBy):
                task_key(source.task(0), part.by)
        except TaskError as error:
            raise resolved.error(key, str(error)) from None
    searching = build_evaluation_strategy(resolved)
    if can_fork(searching) and not supports_forking(environment()):
        problem = (
            f'environment "{recipe.environment.name}" cannot be restored to an earlier state, so it cannot be searched'
        )
        raise resolved.error("evaluation.strategy", problem)
    _check_seats(resolved, strategy, environment())
    mask = method.action_mask
    if isinstance(mask, AdmissibleActions) and not mask.script and not lists_actions(environment()):
        problem = (
            f'environment "{recipe.environment.name}" lists no admissible actions; set script to a function that '
            "returns the allowed actions"
        )
        raise resolved.error("rollout.action_mask", problem)
    forking = can_fork(strategy)
    for key, parts in (("rollout.strategy", forking), ("rollout.start_states", method.start is not None)):
        if parts and not supports_forking(environment()):
            problem = (
                f'environment "{recipe.environment.name}" supports neither snapshot() nor deterministic replay '
                "(`replayable = False`), so episodes cannot fork; use strategy: independent"
            )
            raise resolved.error(key, problem)
    if forking and method.rewrites:
        raise resolved.error(
            "rollout.context_rewrites", "episodes that are rewritten cannot be forked; use one or the other"
        )
    reinforcement, refill = recipe.reinforcement, method.dynamic_sampling
    if (
        refill is not None
        and refill.when_exhausted == "continue"
        and reinforcement is not None
        and reinforcement.deterministic
    ):
        problem = (
            "when_exhausted: continue depends on which groups are faster, which reinforcement.deterministic forbids; "
            "use stop"
        )
        raise resolved.error("rollout.dynamic_sampling", problem)
    for name, rewrite in (method.rewrites or {}).items():
        if implements_protocol(rewrite, StatelessOnly) and rewrite.stateless_only and not is_stateless(environment()):
            problem = f"{name} undoes calls, which a stateful environment (stateless = False) does not support"
            raise resolved.error("rollout.context_rewrites", problem)
    for name, stop in (method.stops or {}).items():
        if (
            implements_protocol(stop, TimingDependent)
            and stop.by_timing
            and reinforcement is not None
            and reinforcement.deterministic
        ):
            problem = f"{name} depends on which episode of a group is faster, which reinforcement.deterministic forbids"
            raise resolved.error("rollout.early_stopping", problem)
    for name, injection in (method.replay or {}).items():
        if injection.off_policy is OffPolicy.TRUNCATED and recipe.importance_correction is None:
            message = f"{name} has off_policy: truncated, which requires importance_correction: truncated"
            raise resolved.error("rollout.replay", message)


def lists_actions(environment: Environment) -> bool:
    """Return whether an environment lists the admissible actions of its states."""
    if isinstance(environment, GameEnvironment):
        game = unwrap_partial(environment.made)
        return implements_protocol(game, HasAdmissibleActions) or bool(game_commands(game))
    if isinstance(environment, Seat):
        return implements_protocol(unwrap_partial(environment.made), ListsMoves)
    return implements_protocol(environment, HasAdmissibleActions)


def _check_seats(resolved: Resolved, strategy: Strategy, environment: Environment) -> None:
    """Check that the environment has the seats (roles) that the strategy plays.

    Raises:
        RecipeError: If a seat does not exist, or the environment cannot assign seats.
    """
    name = resolved.recipe.environment.name
    unknown = None if ":" in name or name == "remote" else ()
    seats = environment.roles if implements_protocol(environment, Seats) else unknown
    played = strategy.roles if implements_protocol(strategy, Seats) else ()
    strange = [role for role in played if seats is not None and role not in seats]
    if strange:
        alternatives = f"there are: {', '.join(seats)}" if seats else "it has only one"
        message = f'environment "{name}" has no seat {", ".join(strange)}; {alternatives}'
        raise resolved.error("rollout.strategy.roles", message)
    if played and not implements_protocol(environment, TakesSeat):
        problem = f'environment "{name}" has no method take_seat(seat), which sets the seat of an episode'
        raise resolved.error("rollout.strategy.roles", problem)


def _arguments(resolved: Resolved, source: Source, vocabulary: int) -> dict[str, Any]:
    """Return the values that components receive by parameter name, such as `seed`."""
    recipe = resolved.recipe
    reinforcement = recipe.reinforcement
    return {
        "seed": recipe.seed,
        "group_size": recipe.rollout.group_size,
        "max_turns": recipe.environment.max_turns,
        "steps": reinforcement.steps if reinforcement is not None else 1,
        "source": source,
        "vocabulary": vocabulary,
        "stored_groups": None,
    }


def build_controller(recipe: Recipe) -> ConcurrencyController | None:
    """Return the controller of `rollout.max_in_flight: auto`; None for a fixed limit."""
    if recipe.rollout.max_in_flight != "auto":
        return None
    return ConcurrencyController(min_limit=MIN_AUTO_EPISODES, max_limit=recipe.rollout.max_episodes)


def count_engine_sequences(recipe: Recipe, policy: Policy) -> int:
    """Return the maximum number of concurrent sequences of an engine.

    With `rollout.max_in_flight: auto`, a local engine on a CPU has at most what half of the free memory holds.
    """
    count = recipe.rollout.max_episodes
    is_limited = recipe.engine.name != "local" or recipe.engine.options.get("cache_gib") is not None
    if recipe.rollout.max_in_flight != "auto" or is_limited or policy.device.type != "cpu":
        return count
    free = free_memory(policy.device)
    each = bytes_per_token(policy.model) * policy.context_length
    return count if free is None else max(MIN_AUTO_EPISODES, min(count, free // 2 // each))
