"""How do stored episodes help fresh ones? Four mechanisms, each reduced to what it adds to losses there are already.

Easy to get wrong: with its weight at 0 each must be exactly the on-policy method.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.ranges import NotNegative


def hybrid_weight(fresh: int, stored: int, *, offline_weight: NotNegative = 0.5) -> float:
    """What a critic's error on a stored turn counts for beside one on a fresh turn, where errors are divided by the
    number of fresh ones: on-policy regression and one-step targets, each a mean of its own (HNPG).

        mean_F (V − MC)² + λ mean_O (V − (r + γ V(s')))²  =  (Σ_F e² + w Σ_O e²) / F,   w = λ F / O

    By analogy: V in front of a turn is learned in the place of Q of a turn, so that what stored turns teach is what
    whoever drew them earns in one step, and the policy from there on.

    Args:
        fresh: F, predictions on fresh turns; where there are none they count as one.
        stored: O, predictions on stored turns; without any the weight is 0.
        offline_weight: λ; 0 is the on-policy critic.

    Source: Zhou et al. 2023, arXiv:2311.08384, eq. 4; λ is ours.
    """
    return offline_weight * max(1, fresh) / stored if stored else 0.0


def interpolated(meta: Tensor, adapted: Tensor, *, rate: float = 0.1) -> Tensor:
    """Weights moved a step from where they were toward where an inner loop ended (MOORL, a Reptile step).

        θ + ε (θ_K − θ)

    Source: MOORL 2025, arXiv:2506.09574; Nichol et al. 2018, arXiv:1803.02999.
    """
    return meta + rate * (adapted - meta)


def pessimistic(values: Tensor, *, by: Literal["min", "deviation"] = "min", strength: NotNegative = 1.0) -> Tensor:
    """[T] what an ensemble [N, T] of critics is believed to say: its least, or mean minus κ deviations (RO2O).

    The deviation is the population's.

    Args:
        strength: κ.

    Source: Wen et al. 2023, arXiv:2309.16973, §4.
    """
    if by == "min":
        return values.min(0).values
    return values.mean(0) - strength * values.std(0, correction=0)


def simulation_penalty(gaps: Tensor, simulated: Tensor, real: Tensor) -> Tensor:
    """[] how far simulated values lie above real ones where the simulator is off (H2O).

        log Σ ω e^Q − mean Q_real,   ω = softmax(gap) over the simulated

    Args:
        gaps: [S] log-odds of simulated against real dynamics, from two discriminators: large where it is off.
        simulated: [S] values with gradient.
        real: [R] values with gradient.

    Source: Niu et al. 2022, arXiv:2206.13464, eq. 7.
    """
    weights = gaps.detach().softmax(0)
    return torch.logsumexp(simulated + weights.log(), 0) - real.mean()
