"""Expansion of the loss settings of a recipe into loss terms.

`reference_kl`, `first_attempt_kl`, `entropy`, `imitation`, `consistency_regularization` and `critic` are short forms;
each adds one or two terms to that of the objective.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from whetstone.algorithms import (
    LossTerm,
    Schedule,
    clipped_value,
    entropy_bonus,
    entropy_smoothing,
    reference_kl,
    squared_value,
    success_value,
    supervised,
)
from whetstone.algorithms.objectives import first_attempt_kl, policy_consistency, value_consistency, value_slope
from whetstone.algorithms.schedules import mixing_weight, phase_weight
from whetstone.learning.losses import POLICY
from whetstone.recipe import CriticSettings, EntropySettings, ImitationSettings, ReinforcementSettings


def expand_loss_terms(
    settings: ReinforcementSettings,
    objective: Callable[..., Any],
    *,
    correction: Callable[..., Any] | None = None,
    critic: CriticSettings | None = None,
    added: Sequence[LossTerm] = (),
) -> tuple[LossTerm, ...]:
    """Return the loss terms of a stage: the objective, then those of its settings and of `loss_terms`.

    Args:
        settings: Settings of the stage.
        objective: Columns → `TokenLoss`, or sums → `SumLoss`.
        correction: Importance weights of the objective; None: none.
        critic: Settings of the critics; None: there are none.
        added: Terms of the recipe key `loss_terms`.
    """
    return tuple(_expand(settings, objective, correction, critic, added))


def cosine_weight(start: float, end: float, steps: int) -> Schedule:
    """Return a weight that follows half a cosine from `start` to `end`, then stays constant.

    Args:
        start: Weight at the first step.
        end: Weight after `steps` steps.
        steps: Duration in steps.
    """
    return functools.partial(_mix, start=start, end=end, steps=steps)


def _expand(
    settings: ReinforcementSettings,
    objective: Callable[..., Any],
    correction: Callable[..., Any] | None,
    critic: CriticSettings | None,
    added: Sequence[LossTerm],
) -> Iterator[LossTerm]:
    imitation, estimator = settings.imitation, settings.reference_estimator
    imitated = _imitation_weight(imitation) if imitation is not None else 0.0
    policy = functools.partial(_remainder, weight=imitated) if imitation is not None and imitation.mixed else 1.0
    yield LossTerm(POLICY, objective, policy, correction=correction)
    if settings.reference_kl > 0:
        yield LossTerm("reference_kl", functools.partial(reference_kl, estimator=estimator), settings.reference_kl)
    if settings.first_attempt_kl > 0:
        first = functools.partial(first_attempt_kl, estimator=estimator)
        yield LossTerm("first_attempt_kl", first, settings.first_attempt_kl)
    if settings.entropy is not None:
        yield _entropy(settings.entropy, settings.steps)
    smooth = settings.consistency_regularization
    if smooth is not None:
        yield LossTerm("consistency", policy_consistency, smooth.policy)
    yield from added
    if critic is not None:
        yield LossTerm("value", _value_loss(critic), critic.weight, "critic")
        if smooth is not None:
            yield LossTerm("value_consistency", value_consistency, critic.weight * smooth.value, "critic")
        stored = settings.offline_mixture
        if stored is not None and stored.simulation_weight > 0:
            yield LossTerm("simulation_penalty", value_slope, stored.simulation_weight * critic.weight, "critic")
    if imitation is not None:
        yield LossTerm("imitation", supervised, imitated, "expert")


def _entropy(settings: EntropySettings, steps: int) -> LossTerm:
    if settings.band is None:
        return LossTerm("entropy", entropy_bonus, settings.weight)
    low, high = 1 - settings.band, 1 + settings.band
    banded = functools.partial(entropy_smoothing, low=low, high=high, size=1.0)
    strength = functools.partial(_strength, strength=settings.strength, steps=steps, form=settings.phase)
    return LossTerm("entropy", banded, settings.weight, scheduled={"strength": strength})


def _value_loss(settings: CriticSettings) -> Callable[..., Any]:
    if settings.loss == "success":
        return success_value
    return squared_value if settings.clip is None else functools.partial(clipped_value, clip=settings.clip)


def _imitation_weight(settings: ImitationSettings) -> float | Schedule:
    if settings.final_weight is None:
        return settings.weight
    return cosine_weight(settings.weight, settings.final_weight, settings.decay_steps)


def _mix(step: int, position: int, *, start: float, end: float, steps: int) -> float:
    return mixing_weight(step, start=start, end=end, decay=steps)


def _remainder(step: int, position: int, *, weight: float | Schedule) -> float:
    return 1 - (weight(step, position) if callable(weight) else weight)


def _strength(step: int, position: int, *, strength: float, steps: int, form: Any) -> float:
    return strength * phase_weight(position, steps, form=form)
