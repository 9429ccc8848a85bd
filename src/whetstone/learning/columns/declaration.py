"""Declaration of columns: a function of the batch with its level, requirements and provider.

    @column("turn", provided_by="a strategy that forks", requires=forks)
    def nodes(batch: Columns) -> Iterable[int]: ...

The function is unchanged. Its name is the column's name, and its docstring is the description in the documentation.

Note:
    A column that requests log-probs or values from the batch costs forward passes too, and must be declared with
    `reads_models=True`. Otherwise it counts as readable from a run record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, get_args

from whetstone.algorithms import Level
from whetstone.capabilities import implements_protocol
from whetstone.errors import RecipeError, did_you_mean
from whetstone.plugins import unwrap_partial
from whetstone.recipe import Recipe
from whetstone.trajectory import Task

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RunCapabilities:
    """Data that a run produces because of its recipe: signals of the reward, data of the strategy.

    Columns check it before anything is sampled.
    """

    recipe: Recipe
    """Recipe of the run."""
    first_task: Callable[[], Task]
    """Returns the first task of the task source, which shows the content of tasks."""
    reward: frozenset[str] = frozenset()
    """Signals and parts that the reward declares for its scores."""
    strategy: frozenset[str] = frozenset()
    """Data that the strategy declares for its groups: `forks`, `greedy_rewards`, `process_rewards`, `roles`."""


Requirement = Callable[[RunCapabilities], str | None]
"""Returns the data that a run lacks and the component that would provide it, in one line; None: nothing is missing."""


@dataclass(frozen=True, slots=True)
class Column:
    """Declaration of a column, created by the decorator `column`: function, level, requirements."""

    name: str
    """Name by which functions request the column."""
    level: Level
    """Level of the column: one number per trajectory, turn or token."""
    build: Callable[..., Any]
    """Computes the column: `Columns` → numbers, an iterable or a tensor."""
    about: str = ""
    """Description in one sentence."""
    reads_models: bool = False
    """Whether it costs a forward pass; other columns can be read from trajectories only."""
    index: bool = False
    """Whether its numbers are integers that count or identify; others are float64."""
    provided_by: str = ""
    """Provider of the column; empty: every run."""
    requires: Requirement | None = None
    """Returns the data that a run lacks for the column; None: every run provides the column."""
    listed_as: str = ""
    """Name in the documentation; empty: its own."""

    def missing(self, run: RunCapabilities) -> str | None:
        """Return the data that a run lacks for this column, or None.

        The text names a component that would provide the data.
        """
        return self.requires(run) if self.requires is not None else None


class Declared(Protocol):
    """Function that the decorator `column` has declared as a column of a batch."""

    declared_column: Column
    """Declaration of the column."""


def column(
    level: Level,
    *,
    reads_models: bool = False,
    index: bool = False,
    provided_by: str = "",
    requires: Requirement | None = None,
) -> Callable[[Function], Function]:
    """Declare a function of the batch as a column with the function's name.

    The first paragraph of the function's docstring is the description in the documentation.

    Args:
        level: Level of the column: `trajectory`, `turn` or `token`.
        reads_models: Whether the column costs a forward pass.
        index: Whether the numbers are integers that count or identify.
        provided_by: Provider, for the documentation; empty: every run.
        requires: Returns the data that a run lacks for the column, before anything is sampled; None: nothing is
            required.

    Raises:
        RecipeError: If the level does not exist.
    """
    levels = get_args(Level)
    if level not in levels:
        if callable(level):
            name = getattr(level, "__name__", "a column")
            raise RecipeError(f'{name}: a column needs its level in parentheses, as in @column("turn")')
        near = did_you_mean(str(level), levels)
        raise RecipeError(f"a column is one number per {', '.join(levels)}; there is no level {level!r}{near}")

    def declared(function: Function) -> Function:
        about = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        declaration = Column(function.__name__, level, function, about, reads_models, index, provided_by, requires)
        function.declared_column = declaration  # type: ignore[attr-defined]
        return function

    return declared


def get_declaration(function: Callable[..., Any]) -> Column | None:
    """Return the column that a function declares, or None.

    Options that are bound to the function are included.
    """
    inner = unwrap_partial(function)
    return replace(inner.declared_column, build=function) if implements_protocol(inner, Declared) else None


def collect_columns(functions: Iterable[Callable[..., Any]]) -> dict[str, Column]:
    """Return the columns that functions declare, by name; other functions are ignored."""
    declarations = map(get_declaration, functions)
    return {column.name: column for column in declarations if column is not None}
