"""What is a column? A function of the batch, and what a run has to know before it is asked: its level, needs, provider.

    @column("turn", provided_by="a strategy that forks", requires=forks)
    def nodes(batch: Columns) -> Iterable[int]: ...

The function stays what it was; its name is the column's, its docstring what the documentation says.

Easy to get wrong: a column that asks the batch for log-probs or values costs forward passes itself, and says so
(`reads_models`), or it is taken for one that a record alone gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, get_args

from whetstone.algorithms import Level
from whetstone.contracts import fulfils
from whetstone.errors import RecipeError, did_you_mean
from whetstone.plugins import unbound
from whetstone.recipe import Recipe
from whetstone.trajectory import Task

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RunCapabilities:
    """What a run produces beside what every run does."""

    recipe: Recipe
    first_task: Callable[[], Task]
    """The first task of its source, for what tasks carry."""
    reward: frozenset[str] = frozenset()
    """What the reward says its scores carry."""
    strategy: frozenset[str] = frozenset()
    """What the strategy says its groups carry: `forks`, `greedy_rewards`, `process_rewards`, `roles`."""


Requirement = Callable[[RunCapabilities], str | None]
"""What is missing in a run, and who would provide it; None: nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column, declared."""

    name: str
    level: Level
    """Per what it is one number."""
    build: Callable[..., Any]
    """The batch (`Columns`) → numbers, an iterable or a tensor."""
    about: str = ""
    """What it is, in a sentence."""
    reads_models: bool = False
    """Whether it costs a forward pass; those that do not can be read from trajectories alone."""
    index: bool = False
    """Whether its numbers are whole and count or tell apart; others are float64."""
    provided_by: str = ""
    """Who gives it; empty: every run."""
    requires: Requirement | None = None
    listed_as: str = ""
    """Under which name the documentation lists it; empty: its own."""

    def missing(self, run: RunCapabilities) -> str | None:
        """What a run lacks for it, and who would provide that; None where it lacks nothing."""
        return self.requires(run) if self.requires is not None else None


class Declared(Protocol):
    """A function that was declared a column."""

    declared_column: Column


def column(
    level: Level,
    *,
    reads_models: bool = False,
    index: bool = False,
    provided_by: str = "",
    requires: Requirement | None = None,
) -> Callable[[Function], Function]:
    """Declare a function of the batch as a column of its name.

    Args:
        level: Per what it is one number: `trajectory`, `turn` or `token`.
        reads_models: Whether it costs a forward pass.
        index: Whether its numbers are whole.
        provided_by: Who gives it, for the documentation; empty: every run.
        requires: Says what a run lacks for it, before anything is sampled.

    Raises:
        RecipeError: There is no such level.
    """
    levels = get_args(Level)
    if level not in levels:
        if callable(level):
            name = getattr(level, "__name__", "a column")
            raise RecipeError(f'{name}: a column says its level in parentheses, as in @column("turn")')
        near = did_you_mean(str(level), levels)
        raise RecipeError(f"a column is one number per {', '.join(levels)}; there is no level {level!r}{near}")

    def declared(function: Function) -> Function:
        about = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        said = Column(function.__name__, level, function, about, reads_models, index, provided_by, requires)
        function.declared_column = said  # type: ignore[attr-defined]
        return function

    return declared


def declaration_of(function: Callable[..., Any]) -> Column | None:
    """What a function declares, options bound to it included; None where it is no column."""
    whole = unbound(function)
    return replace(whole.declared_column, build=function) if fulfils(whole, Declared) else None


def by_name(functions: Iterable[Callable[..., Any]]) -> dict[str, Column]:
    """What functions declare, those that are no column left out."""
    said = map(declaration_of, functions)
    return {column.name: column for column in said if column is not None}
