"""Does a run produce what its estimators read? Asked before anything is sampled, answered with who would provide it.

What a column needs, it says itself (`learning/columns/`); a name that none has is one the reward must give.

Easy to get wrong: an estimator without its input must not run on zeros. A missing turn reward, tree or critic is an
error in one line, not a method that silently is another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from whetstone.assembly.instantiate import function_of
from whetstone.learning.columns import COLUMN_BUILDERS, Column, RunCapabilities, declaration_of
from whetstone.learning.columns.rewards import from_reward
from whetstone.learning.losses import CRITIC_COLUMNS, FORWARD_COLUMNS, PERTURBED_COLUMNS
from whetstone.learning.sequence_logprobs import OF_SUMS
from whetstone.recipe import Resolved

_TAKEN = COLUMN_BUILDERS.keys() | FORWARD_COLUMNS | CRITIC_COLUMNS | PERTURBED_COLUMNS | OF_SUMS | {"advantage"}
"""Names that mean something already; `advantage` is the part of a score in which recorded advantages come."""


def unmet(
    columns: Iterable[str], run: RunCapabilities, added: Mapping[str, Column] | None = None
) -> Iterator[tuple[str, str]]:
    """(column, who would provide it) for each that the run does not produce.

    Args:
        added: Those a recipe adds to ours, by name.
    """
    known = {**COLUMN_BUILDERS, **(added or {})}
    for name in columns:
        said = known[name].missing(run) if name in known else _unknown(name, run)
        if said is not None:
            yield name, said


def _of_passes(name: str, run: RunCapabilities) -> str | None:
    """Return the provider of a column of critics, or of the pass with noise, if the run lacks it."""
    settings = run.recipe.reinforcement
    if "critic" in name and run.recipe.critic is None:
        return "critics provide it: set critic: {}"
    if name in PERTURBED_COLUMNS and settings is not None and settings.consistency_regularization is None:
        return "a second forward pass provides it: set reinforcement.consistency_regularization: {}"
    return "only the built-in simulation penalty reads it" if name == "value_slopes" else None


def _unknown(name: str, run: RunCapabilities) -> str | None:
    if name in CRITIC_COLUMNS | PERTURBED_COLUMNS:
        return _of_passes(name, run)
    said = from_reward(name)(run)
    return None if said is None else f"{said}; or add a column, custom_columns: [my_package.my_module:{name}]"


def added_columns(resolved: Resolved, of_reward: Collection[str]) -> tuple[Callable[..., Any], ...]:
    """The functions a recipe names as columns, each with its options bound.

    Args:
        of_reward: What the reward says its scores carry.

    Raises:
        RecipeError: One is not declared a column, or its name means something already.
    """
    found: dict[str, Callable[..., Any]] = {}
    for k, part in enumerate(resolved.recipe.custom_columns):
        key = f"custom_columns.{k}"
        if ":" not in part.name and part.name in COLUMN_BUILDERS:
            raise resolved.error(key, f'"{part.name}" is a built-in column; it needs no entry')
        function = function_of(resolved, key, part, {}, kind="custom column (my_package.my_module:name)")
        declared = declaration_of(function)
        if declared is None:
            said = f'{part.name} is not declared a column: write @column("turn") above it'
            raise resolved.error(key, f"{said} (from whetstone.learning.columns import column)")
        name = declared.name
        if name in found:
            raise resolved.error(key, f'"{name}" is listed twice')
        if name in _TAKEN or name in of_reward:
            whose = "there is" if name in _TAKEN else "the reward gives"
            raise resolved.error(key, f'{whose} a column named "{name}" already; give the function another name')
        found[name] = function
    return tuple(found.values())
