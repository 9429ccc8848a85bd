"""Functions that compute advantages, loss and importance weights in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whetstone.algorithms import (
    ADVANTAGE_TRANSFORMS,
    ADVANTAGES,
    CORRECTIONS,
    CREDIT_FILTERS,
    OBJECTIVES,
    SHAPING,
)
from whetstone.assembly.instantiate import build_function
from whetstone.learning.credit_assignment import CreditParts
from whetstone.recipe import Part, Resolved


def build_credit(resolved: Resolved) -> CreditParts:
    """Return the functions that compute the advantages of a recipe.

    Raises:
        RecipeError: A name or option is wrong, or a filter is listed twice.
    """
    recipe, filters = resolved.recipe, [part.name for part in resolved.recipe.credit_filters]
    for k, name in enumerate(filters):
        if name in filters[:k]:
            raise resolved.error(f"credit_filters.{k}", f'"{name}" is listed twice')
    advantage = build_function(resolved, "advantage", recipe.advantage, ADVANTAGES)
    shaping = _functions(resolved, "reward_shaping", recipe.reward_shaping, SHAPING)
    transforms = _functions(resolved, "advantage_transforms", recipe.advantage_transforms, ADVANTAGE_TRANSFORMS)
    functions = _functions(resolved, "credit_filters", recipe.credit_filters, CREDIT_FILTERS)
    return CreditParts(
        advantage=advantage,
        shaping=shaping,
        advantage_transforms=transforms,
        filters=dict(zip(filters, functions, strict=True)),
    )


def build_objective(resolved: Resolved) -> Callable[..., Any]:
    """Return the objective of a recipe.

    Raises:
        RecipeError: Its name or an option is wrong.
    """
    objective: Callable[..., Any] = build_function(resolved, "objective", resolved.recipe.objective, OBJECTIVES)
    return objective


def build_correction(resolved: Resolved) -> Callable[..., Any] | None:
    """Return the importance correction of a recipe; None if it has none.

    Raises:
        RecipeError: Its name or an option is wrong.
    """
    key, part = "importance_correction", resolved.recipe.importance_correction
    return None if part is None else build_function(resolved, key, part, CORRECTIONS, kind="importance correction")


def _functions(resolved: Resolved, section: str, parts: Sequence[Part], built_in: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the named functions, each with its options bound."""
    return tuple(
        build_function(resolved, f"{section}.{k}", part, built_in, kind=section.replace("_", " ").removesuffix("s"))
        for k, part in enumerate(parts)
    )
