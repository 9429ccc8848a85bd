"""Axis annotations (`PerTrajectory`, `PerTurn`, `PerToken`) of estimators, and functions that read them.

A parameter without a default names a column of the batch, and its annotation is the axis of that column. The return
annotation is the axis of the advantages. A new estimator needs nothing else:

    def novelty(rewards: PerTrajectory, group: PerTrajectory, novel: PerTurn, trajectory: PerTurn) -> PerTurn: ...

Trajectories of a group, turns of a trajectory and action tokens of a turn are consecutive; `trajectory` (of each
turn), `turn` and `token_trajectory` (of each action token) are ascending indices.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast, get_type_hints

from torch import Tensor

from whetstone.trajectory import RemovalScope

Level = Literal["trajectory", "turn", "token"]
"""Axis of a column: one number per trajectory, per turn, or per action token."""

PerTrajectory = Annotated[Tensor, "trajectory"]
"""[N] one number per trajectory."""
PerTurn = Annotated[Tensor, "turn"]
"""[M] one number per turn, trajectory by trajectory."""
PerToken = Annotated[Tensor, "token"]
"""[K] one number per action token, turn by turn."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages of an estimator, with the targets of the critics that they were computed from."""

    advantages: Tensor
    """[N], [M] or [K] advantages, by the level of the estimator."""
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    """Name of a critic's column → targets with the length of that column; NaN for values that are not trained."""


CreditPerTurn = Annotated[Credit, "turn"]
"""Credit whose advantages are [M]."""
CreditPerToken = Annotated[Credit, "token"]
"""Credit whose advantages are [K]."""


BeforeBaseline = Annotated[Tensor, "trajectory", RemovalScope.BEFORE_BASELINE]
"""[N] above 0 for trajectories that are kept; the others are excluded from all statistics."""
LossOnly = Annotated[Tensor, "trajectory", RemovalScope.LOSS_ONLY]
"""[N] 1 for trajectories that are trained on, 0 for those that only count in statistics."""
Weight = Annotated[Tensor, "trajectory", RemovalScope.WEIGHT]
"""[N] factor of a trajectory's credit."""


def column_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the columns that a function reads: the names of its positional parameters, in order."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return tuple(name for name, p in inspect.signature(_unwrap_partial(function)).parameters.items() if p.kind in kinds)


def annotated_level(function: Callable[..., Any], column: str = "return") -> Level:
    """Return the annotated axis of a parameter or of the return value; `trajectory` without an annotation.

    Args:
        function: Estimator, shaping function, filter or transform.
        column: Name of the parameter; `return` for the return value.
    """
    hint = get_type_hints(_unwrap_partial(function), include_extras=True).get(column)
    metadata: tuple[str, ...] = getattr(hint, "__metadata__", ())
    return cast(Level, next((each for each in metadata if each in ("trajectory", "turn", "token")), "trajectory"))


def annotated_removal_scope(function: Callable[..., Any]) -> RemovalScope:
    """Return the annotated removal scope of a credit filter; `LOSS_ONLY` without an annotation."""
    return next((each for each in _return_metadata(function) if isinstance(each, RemovalScope)), RemovalScope.LOSS_ONLY)


def is_flat_without_advantage(objective: Callable[..., Any]) -> bool:
    """Return whether an objective is annotated `-> AdvantageLoss`: advantage 0 gives loss and gradient 0."""
    return "flat_without_advantage" in _return_metadata(objective)


def has_ratio_to_sampler(objective: Callable[..., Any]) -> bool:
    """Return whether an objective is annotated `-> SamplerRatioLoss`: its ratio is to the sampler."""
    return "ratio_to_sampler" in _return_metadata(objective)


def _return_metadata(function: Callable[..., Any]) -> tuple[Any, ...]:
    return getattr(get_type_hints(_unwrap_partial(function), include_extras=True).get("return"), "__metadata__", ())


def _unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without bound options."""
    return function.func if isinstance(function, functools.partial) else function
