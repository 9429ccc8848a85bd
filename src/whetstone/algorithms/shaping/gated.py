"""Gated rewards: rewards of a lower tier only count if all higher tiers are reached.

Note: The gate is strict, and every higher tier must pass, not only the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.bounded_types import NotNegative


def gated(
    outcomes: PerTrajectory,
    process_rewards: PerTurn,
    trajectory: PerTurn,
    *,
    threshold: float = 0.5,
    weight: NotNegative = 1.0,
) -> PerTurn:
    """Process rewards of trajectories whose outcome is above the threshold; 0 for the others (G-RA).

        r_t ← 1[R > δ] · w · r_t

    Args:
        outcomes: [N] outcome per trajectory.
        process_rewards: [M] of each turn.
        trajectory: [M] index of the trajectory of each turn.
        threshold: Outcome δ above which process rewards count.
        weight: Factor w of the process rewards.

    Source: Sun et al. 2025, arXiv:2508.10548 (gated reward accumulation), with two tiers.
    """
    passes = (outcomes > threshold).double()[trajectory]
    return passes * weight * process_rewards.double()


def gated_sum(
    tiers: Tensor,  # [J, N] from high to low priority
    thresholds: Sequence[float],
    weights: Sequence[float],
) -> Tensor:  # [N]
    """Sum the highest tier and each other tier whose higher tiers all exceed their thresholds.

        S = R¹ + Σ_{j ≥ 2} [Π_{u < j} 1(R^u > δ_u)] w_j R^j

    Args:
        thresholds: δ of each tier but the lowest, J − 1 numbers.
        weights: w of each tier but the highest, J − 1 numbers.

    Raises:
        ValueError: If thresholds or weights are not one fewer than tiers.

    Source: arXiv:2508.10548; the weights are additions.
    """
    if not len(thresholds) == len(weights) == len(tiers) - 1:
        raise ValueError(
            f"{len(tiers)} tiers need {len(tiers) - 1} thresholds and weights, got {len(thresholds)} and {len(weights)}"
        )
    passes = torch.stack([tier > bar for tier, bar in zip(tiers[:-1], thresholds, strict=True)]).cumprod(0)
    lower = tiers[1:].double() * tiers.new_tensor(weights, dtype=torch.float64).unsqueeze(1)
    return tiers[0].double() + (passes * lower).sum(0)
