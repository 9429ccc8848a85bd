"""Per what is a number? Estimators say it in their signatures, and a run reads it there.

A parameter without a default names a column of the batch and says how long it is; the return annotation says what the
advantages are one of. That is all a new estimator has to say:

    def novelty(rewards: PerTrajectory, group: PerTrajectory, novel: PerTurn, trajectory: PerTurn) -> PerTurn: ...

Trajectories of a group, turns of a trajectory and action tokens of a turn stand one behind the other; `trajectory`
(of each turn), `turn` and `token_trajectory` (of each action token) are ascending indices.
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

PerTrajectory = Annotated[Tensor, "trajectory"]
"""[N] one number a trajectory."""
PerTurn = Annotated[Tensor, "turn"]
"""[M] one number a turn, trajectory by trajectory."""
PerToken = Annotated[Tensor, "token"]
"""[K] one number an action token, turn by turn."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages, and what the critics they came from should have said."""

    advantages: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    """By the name of the column each critic gave; of its length, NaN where nothing is to be learned."""


CreditPerTurn = Annotated[Credit, "turn"]
"""Credit whose advantages are [M]."""
CreditPerToken = Annotated[Credit, "token"]
"""Credit whose advantages are [K]."""


BeforeBaseline = Annotated[Tensor, "trajectory", RemovalScope.BEFORE_BASELINE]
"""[N] above 0 where a trajectory stays; the others never existed."""
LossOnly = Annotated[Tensor, "trajectory", RemovalScope.LOSS_ONLY]
"""[N] 1 where a trajectory is trained on, 0 where it only counts."""
Weight = Annotated[Tensor, "trajectory", RemovalScope.WEIGHT]
"""[N] what a trajectory's credit is multiplied by."""


def columns_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The columns a function asks for: its parameters that are no options, in their order."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return tuple(name for name, p in inspect.signature(_whole(function)).parameters.items() if p.kind in kinds)


def level_of(function: Callable[..., Any], column: str = "return") -> Level:
    """Per what one of its columns is, or what it returns; per trajectory where it does not say."""
    hint = get_type_hints(_whole(function), include_extras=True).get(column)
    said: tuple[str, ...] = getattr(hint, "__metadata__", ())
    return cast(Level, next((each for each in said if each in ("trajectory", "turn", "token")), "trajectory"))


def removal_scope_of(function: Callable[..., Any]) -> RemovalScope:
    """Where a filter takes out; only in the loss where it does not say."""
    return next((each for each in _said_of_return(function) if isinstance(each, RemovalScope)), RemovalScope.LOSS_ONLY)


def is_flat_without_advantage(objective: Callable[..., Any]) -> bool:
    """Whether an objective says (`-> AdvantageLoss`) that its loss and gradient are 0 where the advantage is."""
    return "flat_without_advantage" in _said_of_return(objective)


def has_ratio_to_sampler(objective: Callable[..., Any]) -> bool:
    """Whether an objective says (`-> SamplerRatioLoss`) that its ratio is to the sampler."""
    return "ratio_to_sampler" in _said_of_return(objective)


def _said_of_return(function: Callable[..., Any]) -> tuple[Any, ...]:
    return getattr(get_type_hints(_whole(function), include_extras=True).get("return"), "__metadata__", ())


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, where options were bound to it."""
    return function.func if isinstance(function, functools.partial) else function
