"""Entropy-modulated advantages: turns with low entropy get a larger weight (AEM).

Note: The weights are relative to the turns of one task's group, and average 1 there.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import set_mean
from whetstone.bounded_types import NotNegative


def entropy_modulated(
    advantages: PerTurn,
    turn_entropies: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    *,
    strength: NotNegative = 1.0,
    min_range: NotNegative = 0.1,
) -> PerTurn:
    """Scale advantages by a factor that decreases with the mean entropy of the turn (AEM).

        h = (H − min) / (max − min) over the task's turns;   A ← A · exp(−λ h) / mean(exp(−λ h))

    If the range of entropies in a group is below `min_range`, nothing changes. Turns without action tokens (NaN) are
    in no statistic and keep their advantage.

    Args:
        advantages: [M] advantage of each turn.
        turn_entropies: [M] mean over the turn's action tokens, nats; NaN for a turn without any.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        strength: Decay rate λ of the weight with the normalized entropy.
        min_range: Minimum range of entropies in a group, in nats.

    Source: arXiv:2605.00425, §4.
    """
    scaled = advantages.double().clone()
    measured = ~turn_entropies.isnan()
    entropy = turn_entropies.detach().double()[measured]
    if len(entropy) == 0:
        return scaled
    of, count = torch.unique(group[trajectory][measured], return_inverse=True, return_counts=True)[1:]
    low = entropy.new_zeros(len(count)).scatter_reduce_(0, of, entropy, "amin", include_self=False)[of]
    high = entropy.new_zeros(len(count)).scatter_reduce_(0, of, entropy, "amax", include_self=False)[of]
    wide = (high > low) & (high - low >= min_range)
    position = torch.where(wide, (entropy - low) / (high - low), 0.0)
    weight = (-strength * position).exp()
    scaled[measured] *= torch.where(wide, weight / set_mean(weight, of), 1.0)
    return scaled
