"""FamO2O: weights improvement and imitation of a stored turn by the certainty of its value.

Note: One strength for all turns is too strict if critics are uncertain, and too lax if they are certain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerTurn
from whetstone.bounded_types import NotNegative, Positive


def balance_coefficient(deviations: Tensor, *, min_coef: float, max_coef: float, scale: float) -> Tensor:
    """Return the balance coefficient of each state, [M]: `max_coef` if an ensemble agrees, toward `min_coef` if not.

        b(s) = min_coef + (max_coef − min_coef) exp(−σ(s) / scale)

    Source: the coefficient per state of Wang et al. 2023 (FamO2O), arXiv:2310.17966, §4.2; the rule is an addition.
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
    """Compute the imitation weight of each turn from its advantage and the certainty of its value (FamO2O).

        A' = min(exp(b(s) A), w_max),   b(s) = min_coef + (max_coef − min_coef) exp(−σ(s) / scale)

    σ is the deviation of an ensemble of critics. By analogy: there a model of b is learned, to choose for each state
    the imitation whose value is highest; here a rule reads the ensemble, since a text policy has one head of actions
    and no coefficient among its inputs. With `min_coef` and `max_coef` 0 every turn has the same weight.

    Made for stored data, with `objective: policy_gradient` and `critic: {ensemble_size: 5}`.

    Args:
        advantages: [M] advantage of each turn.
        value_deviations: [M] standard deviation of the critic ensemble before each turn.
        min_coef: Coefficient b if the critics disagree; 0 is plain imitation.
        max_coef: Coefficient b if the critics agree.
        scale: Deviation of the critics, in units of return, at which b is e times nearer to `min_coef`.
        max_weight: Maximum weight of a turn.

    Raises:
        ValueError: `max_coef` is less than `min_coef`.

    Source: Wang et al. 2023, arXiv:2310.17966, eq. 5; the rule for b and the cap are additions.
    """
    if max_coef < min_coef:
        raise ValueError(f"max_coef must be at least min_coef ({min_coef:g}), got {max_coef:g}")
    b = balance_coefficient(value_deviations, min_coef=min_coef, max_coef=max_coef, scale=scale)
    weights = (b * advantages.double()).clamp(max=80).exp()
    return torch.clamp(weights, max=max_weight)
