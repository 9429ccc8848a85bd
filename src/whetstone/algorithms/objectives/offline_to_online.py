"""Offline-to-online losses: terms by which stored episodes contribute to on-policy training (HNPG, MOORL, RO2O, H2O).

Note: With weight 0 each must be exactly the on-policy method.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.bounded_types import NotNegative


def hybrid_weight(fresh: int, stored: int, *, offline_weight: NotNegative = 0.5) -> float:
    """Compute the weight of a critic's error on a stored turn relative to one on a fresh turn (HNPG).

    Errors are divided by the number of fresh turns. The loss is on-policy regression plus one-step targets, each with
    its own mean.

        mean_F (V − MC)² + λ mean_O (V − (r + γ V(s')))²  =  (Σ_F e² + w Σ_O e²) / F,   w = λ F / O

    By analogy: V before a turn is trained instead of Q of a turn. The targets of stored turns therefore combine one
    step of their author with the policy's value afterwards.

    Args:
        fresh: F, number of predictions on fresh turns; 0 is treated as 1.
        stored: O, number of predictions on stored turns; if 0, the weight is 0.
        offline_weight: Weight λ of the error on stored turns; 0 is the on-policy critic.

    Source: Zhou et al. 2023, arXiv:2311.08384, eq. 4; λ is an addition.
    """
    return offline_weight * max(1, fresh) / stored if stored else 0.0


def reptile_step(meta: Tensor, adapted: Tensor, *, rate: float = 0.1) -> Tensor:
    """Move weights a step toward the result of an inner loop (MOORL, a Reptile step).

        θ + ε (θ_K − θ)

    Source: MOORL 2025, arXiv:2506.09574; Nichol et al. 2018, arXiv:1803.02999.
    """
    return meta + rate * (adapted - meta)


def pessimistic_value(
    values: Tensor, *, by: Literal["min", "deviation"] = "min", strength: NotNegative = 1.0
) -> Tensor:
    """Compute a pessimistic value [T] of an ensemble [N, T] of critics: minimum, or mean − κ · std (RO2O).

    `std` is the population standard deviation.

    Args:
        strength: Number κ of standard deviations below the mean.

    Source: Wen et al. 2023, arXiv:2309.16973, §4.
    """
    if by == "min":
        return values.min(0).values
    return values.mean(0) - strength * values.std(0, correction=0)


def simulation_penalty(gaps: Tensor, simulated: Tensor, real: Tensor) -> Tensor:
    """Compute how far simulated values exceed real ones, weighted by the simulator's error, [] (H2O).

        log Σ ω e^Q − mean Q_real,   ω = softmax(gap) over the simulated

    Args:
        gaps: [S] log-odds of simulated against real dynamics from two discriminators; large if the simulator is wrong.
        simulated: [S] values with gradient.
        real: [R] values with gradient.

    Source: Niu et al. 2022, arXiv:2206.13464, eq. 7.
    """
    weights = gaps.detach().softmax(0)
    return torch.logsumexp(simulated + weights.log(), 0) - real.mean()
