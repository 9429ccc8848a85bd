"""How much is a turn of stored data to be improved on, and how much only imitated? Each as much as its value is known.

Easy to get wrong: one strength for all turns is too strict where critics guess, and too lax where they know.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerTurn
from whetstone.ranges import NotNegative, Positive


def balance(deviations: Tensor, *, min_coef: float, max_coef: float, scale: float) -> Tensor:
    """[M] the balance coefficient of each state: `max_coef` if an ensemble agrees, toward `min_coef` if not.

        b(s) = min_coef + (max_coef − min_coef) exp(−σ(s) / scale)

    Source: the coefficient per state of Wang et al. 2023 (FamO2O), arXiv:2310.17966, §4.2; the rule is ours.
    """
    return min_coef + (max_coef - min_coef) * (-deviations.double() / scale).exp()


def famo2o(
    advantages: PerTurn,
    value_deviations: PerTurn,
    *,
    min_coef: NotNegative = 0.5,
    max_coef: NotNegative = 3.0,
    scale: Positive = 0.1,
    max_weight: Positive = 20.0,
) -> PerTurn:
    """What each turn's imitation counts for, by its advantage and how well its state's value is known (FamO2O).

        A' = min(exp(b(s) A), w_max),   b(s) = min_coef + (max_coef − min_coef) exp(−σ(s) / scale)

    σ is the deviation of an ensemble of critics. By analogy: there a model of b is learned, to choose for each state
    the imitation whose value is highest; here a rule reads the ensemble, since a text policy has one head of actions
    and no coefficient among its inputs. With `min_coef` and `max_coef` 0 every turn has the same weight.

    Made for stored data, with `objective: policy_gradient` and `critic: {ensemble_size: 5}`.

    Args:
        advantages: [M]
        value_deviations: [M] of what the ensemble says in front of each turn.
        min_coef: Coefficient b if the critics disagree; 0 is plain imitation.
        max_coef: Coefficient b if the critics agree.
        scale: Deviation of the critics, in units of return, at which b is e times nearer to `min_coef`.
        max_weight: Maximum weight of a turn.

    Raises:
        ValueError: `max_coef` is less than `min_coef`.

    Source: Wang et al. 2023, arXiv:2310.17966, eq. 5; the rule for b and the cap are ours.
    """
    if max_coef < min_coef:
        raise ValueError(f"max_coef must be at least min_coef ({min_coef:g}), got {max_coef:g}")
    b = balance(value_deviations, min_coef=min_coef, max_coef=max_coef, scale=scale)
    weights = (b * advantages.double()).clamp(max=80).exp()
    return torch.clamp(weights, max=max_weight)
