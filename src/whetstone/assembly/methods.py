"""Which parts does a recipe name for the primitives of rollout, and do they go together?

Easy to get wrong: what cannot work must be refused before anything is sampled: a fork of a world that cannot be gone
back to, a replay without the log-probs its correction needs, a rule that depends on who is faster in a run that must
not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from whetstone.assembly.instantiate import part_of
from whetstone.assembly.stored_data import StoredReader
from whetstone.contracts import fulfils
from whetstone.data import StoredMixture
from whetstone.environments import Environment
from whetstone.environments.protocol import Seats, TakesSeat, can_be_gone_back_to
from whetstone.errors import TaskError
from whetstone.recipe import DataSettings, Part, Resolved, StoredMixtureSettings
from whetstone.rollout import Method, Strategy
from whetstone.rollout.allocations import ALLOCATIONS
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.environment_wrappers import ENVIRONMENT_WRAPPERS
from whetstone.rollout.group_sources import GroupSource, MixedSource
from whetstone.rollout.method import ROLLOUT_KEYS
from whetstone.rollout.optional import ByTiming, ChecksSource, KeyedBy, StatelessOnly, forks
from whetstone.rollout.protocol import (
    Allocation,
    ContextTransform,
    DynamicSampling,
    EnvironmentWrapper,
    Replay,
    Rewrite,
    Start,
    Stop,
    TrajectoryFilter,
)
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.rewrites import REWRITES
from whetstone.rollout.starts import STARTS
from whetstone.rollout.stops import STOPS
from whetstone.rollout.strategies import SEARCHES, STRATEGIES
from whetstone.rollout.task_keys import key_of
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks import CURRICULA, Curriculum, Source
from whetstone.tools.protocol import stateless
from whetstone.trajectory import Group, OffPolicy


def strategy_of(resolved: Resolved, source: Source, vocabulary: int) -> Strategy:
    """How the trajectories of a task come about in this recipe."""
    part = resolved.recipe.rollout.strategy
    given = _given(resolved, source, vocabulary)
    made: Strategy = part_of(resolved, "rollout.strategy", "strategy", part, STRATEGIES, given, protocol=Strategy)
    return made


def searching_of(resolved: Resolved) -> Strategy | None:
    """How an answer comes of several tries in an evaluation of this recipe; None where each stands for itself."""
    part = resolved.recipe.evaluation.strategy
    if part is None:
        return None
    made: Strategy = part_of(resolved, "evaluation.strategy", "strategy", part, SEARCHES, {}, protocol=Strategy)
    return made


def method_of(resolved: Resolved, source: Source, vocabulary: int, reader: StoredReader) -> Method:
    """What a recipe does around its strategy.

    Args:
        reader: Reads stored episodes.

    Raises:
        RecipeError: A name or option is wrong.
    """
    recipe, rollout, given = resolved.recipe, resolved.recipe.rollout, _given(resolved, source, vocabulary)
    sources = _sources(resolved, reader)
    stored = sources["stored"].source if "stored" in sources else None
    given["stored_groups"] = stored.everything if isinstance(stored, StoredMixture) else None

    def one(key: str, part: Part | None, protocol: type, built_in: Mapping[str, Any]) -> Any:
        kind = re.sub(r"(?<!^)(?=[A-Z])", " ", protocol.__name__).lower()
        return None if part is None else part_of(resolved, key, kind, part, built_in, given, protocol=protocol)

    def some(key: str, parts: Sequence[Part], protocol: type, built_in: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for k, part in enumerate(parts):
            if part.name in found:
                raise resolved.error(f"rollout.{key}.{k}", f'"{part.name}" is listed twice')
            found[part.name] = one(f"rollout.{key}.{k}", part, protocol, built_in)
        return found

    return Method(
        curriculum=one("curriculum", recipe.curriculum, Curriculum, CURRICULA),
        allocate=one("rollout.budget_allocation", rollout.budget_allocation, Allocation, ALLOCATIONS),
        start=one("rollout.start_states", rollout.start_states, Start, STARTS),
        context_transforms=some("context_transforms", rollout.context_transforms, ContextTransform, CONTEXT_TRANSFORMS),
        stops=some("early_stopping", rollout.early_stopping, Stop, STOPS),
        rewrites=some("context_rewrites", rollout.context_rewrites, Rewrite, REWRITES),
        environment_wrapper=one(
            "rollout.environment_wrapper", rollout.environment_wrapper, EnvironmentWrapper, ENVIRONMENT_WRAPPERS
        ),
        replay=some("replay", rollout.replay, Replay, REPLAY),
        trajectory_filters=some("trajectory_filters", rollout.trajectory_filters, TrajectoryFilter, TRAJECTORY_FILTERS),
        dynamic_sampling=one("rollout.dynamic_sampling", rollout.dynamic_sampling, DynamicSampling, DYNAMIC_SAMPLING),
        overflow=rollout.on_context_overflow,
        sources=sources,
    )


def _stored(resolved: Resolved, reader: StoredReader) -> StoredMixture | None:
    """What stored episodes come beside fresh ones; their files are opened when they are first read."""
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
    """Groups of a run directory or of a file of trajectories, sampled as in `reinforcement.offline_mixture`."""
    settings = StoredMixtureSettings(data=[DataSettings(path=data)], sampling=sampling)
    return StoredMixture(lambda: [reader.groups(settings.data[0], "reinforcement.sources")], settings, seed=seed)


GROUP_SOURCES = {"stored": _stored_source}


def _sources(resolved: Resolved, reader: StoredReader) -> dict[str, MixedSource]:
    """Return the sources of groups by name; `reinforcement.offline_mixture` is the one named `stored`."""
    sources: dict[str, MixedSource] = {}
    reinforcement, stored = resolved.recipe.reinforcement, _stored(resolved, reader)
    if reinforcement is None:
        return sources
    if stored is not None:
        settings = stored.settings
        sources["stored"] = MixedSource(stored, settings.fraction, mixture=settings, off_policy=stored.off_policy)
    arguments = {"reader": reader, "seed": resolved.recipe.seed}
    for name, each in reinforcement.sources.items():
        key = f"reinforcement.sources.{name}.source"
        source = part_of(resolved, key, "group source", each.source, GROUP_SOURCES, arguments, protocol=GroupSource)
        sources[name] = MixedSource(source, each.fraction, each.timeout_seconds)
    return sources


def check_method(
    resolved: Resolved, strategy: Strategy, method: Method, source: Source, environment: Callable[[], Environment]
) -> None:
    """Refuse what cannot go together.

    Raises:
        RecipeError: Says what, and what would do.
    """
    recipe = resolved.recipe
    for name, part in (("strategy", strategy), *method.parts()):
        kind, dot, own = name.partition(".")
        of_rollout = f"rollout.{ROLLOUT_KEYS.get(kind, kind)}{dot}{own}"
        of_rollout = f"reinforcement.{name}" if kind == "sources" else of_rollout
        key = {"curriculum": name, "stored": "reinforcement.offline_mixture"}.get(name, of_rollout)
        try:
            if fulfils(part, ChecksSource):
                part.check(source, 0)
            if fulfils(part, KeyedBy):
                key_of(source.task(0), part.by)
        except TaskError as error:
            raise resolved.error(key, str(error)) from None
    searching = searching_of(resolved)
    if forks(searching) and not can_be_gone_back_to(environment()):
        said = f'environment "{recipe.environment.name}" cannot be gone back to, so no way through it can be searched'
        raise resolved.error("evaluation.strategy", said)
    _check_seats(resolved, strategy, environment())
    forking = forks(strategy)
    for key, parts in (("rollout.strategy", forking), ("rollout.start_states", method.start is not None)):
        if parts and not can_be_gone_back_to(environment()):
            said = (
                f'environment "{recipe.environment.name}" supports neither snapshot() nor deterministic replay '
                "(`replayable = False`), so episodes cannot fork; use strategy: independent"
            )
            raise resolved.error(key, said)
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
        said = (
            "when_exhausted: continue depends on which groups are faster, which reinforcement.deterministic forbids; "
            "use stop"
        )
        raise resolved.error("rollout.dynamic_sampling", said)
    for name, rewrite in (method.rewrites or {}).items():
        if fulfils(rewrite, StatelessOnly) and rewrite.stateless_only and not stateless(environment()):
            said = f"{name} takes calls back, which a world that remembers them (stateless = False) does not"
            raise resolved.error("rollout.context_rewrites", said)
    for name, stop in (method.stops or {}).items():
        if fulfils(stop, ByTiming) and stop.by_timing and reinforcement is not None and reinforcement.deterministic:
            said = f"{name} depends on which of a group's episodes is faster, which reinforcement.deterministic forbids"
            raise resolved.error("rollout.early_stopping", said)
    for name, injection in (method.replay or {}).items():
        if injection.off_policy is OffPolicy.TRUNCATED and recipe.importance_correction is None:
            message = f"{name} has off_policy: truncated, which requires importance_correction: truncated"
            raise resolved.error("rollout.replay", message)


def _check_seats(resolved: Resolved, strategy: Strategy, environment: Environment) -> None:
    """See that there are the seats that a strategy plays."""
    name = resolved.recipe.environment.name
    unknown = None if ":" in name or name == "remote" else ()
    seats = environment.roles if fulfils(environment, Seats) else unknown
    played = strategy.roles if fulfils(strategy, Seats) else ()
    strange = [role for role in played if seats is not None and role not in seats]
    if strange:
        there = f"there are: {', '.join(seats)}" if seats else "it is played by one"
        said = f'environment "{name}" has no seat {", ".join(strange)}; {there}'
        raise resolved.error("rollout.strategy.roles", said)
    if played and not fulfils(environment, TakesSeat):
        problem = f'environment "{name}" has no method take_seat(seat), which sets the seat of an episode'
        raise resolved.error("rollout.strategy.roles", problem)


def _given(resolved: Resolved, source: Source, vocabulary: int) -> dict[str, Any]:
    """What any part may ask for by name."""
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
