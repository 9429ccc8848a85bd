"""Checks that a run produces the columns that its advantage estimators and losses read.

A column is a tensor with one number per token, turn or trajectory. Each column defines its requirements
(`learning/columns/`); a column with an unknown name must be provided by the reward.

Note:
    An estimator without its input must not run on zeros. A missing turn reward, tree or critic is an error in one line,
    not a silent change of the method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from whetstone.assembly.instantiate import build_function
from whetstone.learning.columns import COLUMN_BUILDERS, Column, RunCapabilities, get_declaration
from whetstone.learning.columns.reward_columns import from_reward
from whetstone.learning.losses import CRITIC_COLUMNS, FORWARD_COLUMNS, PERTURBED_COLUMNS
from whetstone.learning.sequence_logprobs import SEQUENCE_COLUMNS
from whetstone.recipe import Resolved

_TAKEN = (
    COLUMN_BUILDERS.keys() | FORWARD_COLUMNS | CRITIC_COLUMNS | PERTURBED_COLUMNS | SEQUENCE_COLUMNS | {"advantage"}
)
"""Column names that a custom column cannot have; `advantage` is the component of a score with recorded advantages."""


def find_unmet_columns(
    columns: Iterable[str], run: RunCapabilities, added: Mapping[str, Column] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (column, possible provider) for each column that the run does not produce.

    Args:
        columns: Names of the columns that an estimator or a loss reads.
        run: Capabilities of the run: its recipe, reward columns and strategy data.
        added: Custom columns of the recipe, by name.
    """
    known = {**COLUMN_BUILDERS, **(added or {})}
    for name in columns:
        provider = known[name].missing(run) if name in known else _unknown(name, run)
        if provider is not None:
            yield name, provider


def _of_passes(name: str, run: RunCapabilities) -> str | None:
    """Describe what would provide a column of critics or of the noisy forward pass.

    None if the run provides it.
    """
    settings = run.recipe.reinforcement
    if "critic" in name and run.recipe.critic is None:
        return "critics provide it: set critic: {}"
    if name in PERTURBED_COLUMNS and settings is not None and settings.consistency_regularization is None:
        return "a second forward pass provides it: set reinforcement.consistency_regularization: {}"
    return "only the built-in simulation penalty reads it" if name == "value_slopes" else None


def _unknown(name: str, run: RunCapabilities) -> str | None:
    """Describe what would provide a column without a built-in builder.

    None if the run provides it.
    """
    if name in CRITIC_COLUMNS | PERTURBED_COLUMNS:
        return _of_passes(name, run)
    provider = from_reward(name)(run)
    return None if provider is None else f"{provider}; or add a column, custom_columns: [my_package.my_module:{name}]"


def build_custom_columns(resolved: Resolved, of_reward: Collection[str]) -> tuple[Callable[..., Any], ...]:
    """Build the functions of `custom_columns`, with their options bound.

    Args:
        resolved: Recipe.
        of_reward: Names of the columns that the reward provides.

    Raises:
        RecipeError: If a function is not declared as a column (`@column`), or its name is already in use.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for k, part in enumerate(resolved.recipe.custom_columns):
        key = f"custom_columns.{k}"
        if ":" not in part.name and part.name in COLUMN_BUILDERS:
            raise resolved.error(key, f'"{part.name}" is a built-in column; it needs no entry')
        function = build_function(resolved, key, part, {}, kind="custom column (my_package.my_module:name)")
        declared = get_declaration(function)
        if declared is None:
            problem = f'{part.name} is not declared a column: write @column("turn") above it'
            raise resolved.error(key, f"{problem} (from whetstone.learning.columns import column)")
        name = declared.name
        if name in functions:
            raise resolved.error(key, f'"{name}" is listed twice')
        if name in _TAKEN or name in of_reward:
            whose = "there is" if name in _TAKEN else "the reward gives"
            raise resolved.error(key, f'{whose} a column named "{name}" already; give the function another name')
        functions[name] = function
    return tuple(functions.values())
