"""Construction of the task source and the reward of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whetstone.assembly.instantiate import build_component
from whetstone.environments.registry import TASKS_OF_WORLDS
from whetstone.errors import RecipeError
from whetstone.inference import Member
from whetstone.plugins import OptionError
from whetstone.recipe import Part, Resolved
from whetstone.rewards import REWARDS, Composed, Reward, make_reward
from whetstone.tasks import Source
from whetstone.tasks.built_in import SOURCES
from whetstone.tasks.task_dates import DateRange, select_dated_tasks

_SOURCES = {**SOURCES, **TASKS_OF_WORLDS}


def build_source(
    resolved: Resolved, key: str, options: Mapping[str, Any], *, log: Callable[[str], None] = lambda line: None
) -> Source:
    """Build the task source of a recipe (`tasks`).

    Args:
        resolved: Recipe.
        key: Recipe key of the options, for errors: `tasks` or `supervised.tasks`.
        options: Options of the task source.
        log: Receives a line about a selection by date.

    Raises:
        RecipeError: If no source has the name, or an option is wrong.
    """
    seed = {"seed": resolved.recipe.seed}
    part, place = Part(name=resolved.recipe.tasks.source, **options), "tasks.source"
    source: Source = build_component(
        resolved, key, "task source", part, _SOURCES, seed, protocol=Source, named_at=place
    )
    tasks = resolved.recipe.tasks
    try:
        dates = DateRange(tasks.date, tasks.since, tasks.until, tasks.held_out_since, tasks.cutoff)
        if dates.column is not None:
            log(select_dated_tasks(source, dates))
    except OptionError as error:
        raise resolved.error(f"tasks.{error.key}", error.message) from None
    return source


def build_reward(resolved: Resolved, **members: Callable[[str], Member]) -> Reward:
    """Build the reward of a recipe (`reward`).

    Args:
        resolved: Recipe.
        members: `member`: function that returns a member of `policies` by name, for learned rewards.

    Raises:
        RecipeError: If no reward has the name, or an option is wrong.
    """
    part = resolved.recipe.reward
    warm_up = resolved.recipe.supervised.steps if resolved.recipe.supervised is not None else 0
    try:
        reward = make_reward({"name": part.name, **part.options}, REWARDS, **members)
        if isinstance(reward, Composed):
            reward.terms = {name: term.start_fade_at(warm_up) for name, term in reward.terms.items()}
        return reward
    except OptionError as error:
        raise resolved.error(f"reward.{error.key}", error.message) from None
    except (RecipeError, ValueError) as error:
        raise resolved.error("reward", str(error)) from None
