"""Loss terms: the summands of an update's loss as data, and the built-in functions that a recipe names.

    loss of an update = Σ over terms: weight · mean of the function over the tokens of `over`

A function names the columns it reads, [T] each, by its parameters, and returns a `TokenLoss`; keyword-only parameters
are options. An objective is such a function too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from whetstone.algorithms.axes import column_names
from whetstone.algorithms.objectives import (
    OBJECTIVES,
    TokenLoss,
    entropy_bonus,
    entropy_smoothing,
    first_attempt_kl,
    reference_kl,
)

Over = Literal["sampled", "expert", "all", "critic"]
"""Tokens of a term, and what its mean is over.

- `sampled`: action tokens of the policy's episodes, each with the weight of `aggregation`. Includes tokens that an
  expert wrote, unless another term is over `expert`.
- `expert`: tokens that an expert wrote; a plain mean.
- `all`: as `sampled`, with the expert's tokens in any case.
- `critic`: tokens at which critics predict, those of stored episodes for critics included; the mean is over the
  predictions.
"""
Schedule = Callable[[int, int], float]
"""(steps of the stage so far, position in the schedules of the stage, which also follows its budget) → number."""


@dataclass(frozen=True, slots=True)
class LossTerm:
    """Summand of the loss of an update, as data.

    Created from a recipe's settings (`loss_expansion.py`) and from its `loss_terms`.
    """

    name: str
    """Unique name of the term, which is reported as `loss/NAME`."""
    function: Callable[..., TokenLoss]
    """Columns, [T] each, by the names of its parameters → loss per token and metrics."""
    weight: float | Schedule = 1.0
    """Factor of the term, or its schedule over the stage."""
    over: Over = "sampled"
    """Tokens that the term and its mean are over; see `Over`."""
    correction: Callable[..., Any] | None = None
    """Columns → [T] importance weights of the term's losses; None: 1."""
    scheduled: Mapping[str, Schedule] = field(default_factory=dict)
    """Schedules of options of the function, by option."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the term and its correction read."""
        corrected = column_names(self.correction) if self.correction is not None else ()
        return (*column_names(self.function), *corrected)

    def resolve(self, step: int, position: int, *, scale: float = 1.0) -> LossTerm:
        """Return the term at a step of the stage, with numbers instead of schedules.

        Args:
            step: Number of steps made.
            position: Position in the schedules of the stage, in steps.
            scale: Factor of the weight.
        """
        weight = self.weight(step, position) if callable(self.weight) else self.weight
        options = {name: of(step, position) for name, of in self.scheduled.items()}
        function = functools.partial(self.function, **options) if options else self.function
        return replace(self, function=function, weight=weight * scale, scheduled={})


_ON_SUMS = {name for name, function in OBJECTIVES.items() if "learner_sums" in column_names(function)}
LOSS_TERMS: Mapping[str, Callable[..., Any]] = {
    "entropy": entropy_bonus,
    "entropy_band": entropy_smoothing,
    "first_attempt_kl": first_attempt_kl,
    "reference_kl": reference_kl,
    **{name: function for name, function in OBJECTIVES.items() if name not in _ON_SUMS},
}
"""Functions of `loss_terms`, by name: regularizers, and the objectives with a loss per token."""
