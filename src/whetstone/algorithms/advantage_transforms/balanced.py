"""How much is a turn of stored data to be improved on, and how much only imitated? Each as much as its value is known.

Easy to get wrong: one strength for all turns is too strict where critics guess, and too lax where they know.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerTurn
from whetstone.ranges import NotNegative, Positive


def balance(deviations: Tensor, *, least: float, most: float, scale: float) -> Tensor:
    """[M] the balance coefficient of each state: `most` where an ensemble is of one mind, toward `least` where not.

        b(s) = least + (most − least) exp(−σ(s) / scale)

    Source: the coefficient per state of Wang et al. 2023 (FamO2O), arXiv:2310.17966, §4.2; the rule is ours.
    """
    return least + (most - least) * (-deviations.double() / scale).exp()


def balanced(
    advantages: PerTurn,
    value_deviations: PerTurn,
    *,
    least: NotNegative = 0.5,
    most: NotNegative = 3.0,
    scale: Positive = 0.1,
    weight_max: Positive = 20.0,
) -> PerTurn:
    """What each turn's imitation counts for, by its advantage and how well its state's value is known (FamO2O).

        A' = min(exp(b(s) A), w_max),   b(s) = least + (most − least) exp(−σ(s) / scale)

    σ is the deviation of an ensemble of critics. By analogy: there a model of b is learned, to choose for each state
    the imitation whose value is highest; here a rule reads the ensemble, since a text policy has one head of actions
    and no coefficient among its inputs. With `least` and `most` 0 every turn is imitated alike.

    Made for stored data, with `objective: policy_gradient` and `critic: {ensemble_size: 5}`.

    Args:
        advantages: [M]
        value_deviations: [M] of what the ensemble says in front of each turn.
        least: b where critics are of many minds; 0 is plain imitation.
        most: b where they are of one.
        scale: The deviation, in units of return, at which b is e times nearer to `least`.
        weight_max: Largest weight.

    Raises:
        ValueError: `most` is less than `least`.

    Source: Wang et al. 2023, arXiv:2310.17966, eq. 5; the rule for b and the cap are ours.
    """
    if most < least:
        raise ValueError(f"most is least ({least:g}) or more: got {most:g}")
    b = balance(value_deviations, least=least, most=most, scale=scale)
    weights = (b * advantages.double()).clamp(max=80).exp()
    return torch.clamp(weights, max=weight_max)
