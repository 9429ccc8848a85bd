"""Options of the components that a recipe names, with default values for the options that the recipe does not set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from whetstone.algorithms import (
    ADVANTAGE_TRANSFORMS,
    ADVANTAGES,
    CORRECTIONS,
    CREDIT_FILTERS,
    LOSS_TERMS,
    OBJECTIVES,
    SHAPING,
)
from whetstone.environments import ENVIRONMENTS
from whetstone.errors import RecipeError
from whetstone.plugins import find_part, get_component_options
from whetstone.recipe import Recipe
from whetstone.recipe.settings_base import Part
from whetstone.rewards import REWARDS
from whetstone.rollout import SEARCHES
from whetstone.rollout.action_masks import ACTION_MASKS
from whetstone.rollout.budget_allocation import ALLOCATIONS
from whetstone.rollout.context_rewrites import REWRITES
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.early_stopping import STOPS
from whetstone.rollout.environment_wrappers import ENVIRONMENT_WRAPPERS
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.start_states import STARTS
from whetstone.rollout.strategies import STRATEGIES
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks import SOURCES
from whetstone.tasks.curricula import CURRICULA

_BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "reward": REWARDS,
    "curriculum": CURRICULA,
    "rollout.strategy": STRATEGIES,
    "rollout.budget_allocation": ALLOCATIONS,
    "rollout.start_states": STARTS,
    "rollout.context_transforms": CONTEXT_TRANSFORMS,
    "rollout.early_stopping": STOPS,
    "rollout.context_rewrites": REWRITES,
    "rollout.environment_wrapper": ENVIRONMENT_WRAPPERS,
    "rollout.action_mask": ACTION_MASKS,
    "rollout.replay": REPLAY,
    "rollout.trajectory_filters": TRAJECTORY_FILTERS,
    "rollout.dynamic_sampling": DYNAMIC_SAMPLING,
    "evaluation.strategy": SEARCHES,
    "advantage": ADVANTAGES,
    "reward_shaping": SHAPING,
    "advantage_transforms": ADVANTAGE_TRANSFORMS,
    "credit_filters": CREDIT_FILTERS,
    "objective": OBJECTIVES,
    "loss_terms": LOSS_TERMS,
    "importance_correction": CORRECTIONS,
}
"""Built-in components by the recipe key that names one, or a list of them."""


class ComponentOptions(NamedTuple):
    """Component that a recipe names, with the values of its options."""

    key: str
    """Recipe key that names the component."""
    name: str
    """Name of the component."""
    options: Mapping[str, Any]
    """Values of all options; without the options that a recipe must set and does not."""


def list_component_options(recipe: Recipe) -> list[ComponentOptions]:
    """List the components of a recipe with the values of all of their options, including defaults."""
    return [
        ComponentOptions(key, name, {**_find_defaults(key, name, built_in), **options})
        for key, name, options, built_in in _components(recipe)
    ]


def list_default_options(recipe: Recipe) -> list[ComponentOptions]:
    """List the built-in components of a recipe with the options that the recipe does not set, and their defaults.

    Custom components are left out: their code is not imported.
    """
    listed = []
    for key, name, options, built_in in _components(recipe):
        defaults = _find_defaults(key, name, built_in) if name in built_in else {}
        unset = {option: value for option, value in defaults.items() if option not in options}
        if unset:
            listed.append(ComponentOptions(key, name, unset))
    return listed


def _components(recipe: Recipe) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield (recipe key, name, options in the recipe, built-in components of this kind) of each component."""
    yield "tasks", recipe.tasks.source, recipe.tasks.options, SOURCES
    yield "environment", recipe.environment.name, recipe.environment.options, ENVIRONMENTS
    for key, built_in in _BUILT_IN.items():
        for place, part in _parts_at(recipe, key):
            yield place, part.name, part.options, built_in


def _parts_at(recipe: Recipe, key: str) -> Iterator[tuple[str, Part]]:
    """Yield (recipe key, component) of each component that a recipe key names; a key can name a list of them."""
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name, None)
    if isinstance(value, Part):
        yield key, value
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if isinstance(part, Part):
            yield f"{key}.{index}", part


def _find_defaults(key: str, name: str, built_in: Mapping[str, Any]) -> dict[str, Any]:
    try:
        known = get_component_options(find_part(key, name, built_in))
    except (RecipeError, TypeError, ValueError):  # custom code that is not here, or without a signature
        return {}
    return {
        option: parameter.default for option, parameter in known.items() if parameter.default is not parameter.empty
    }
