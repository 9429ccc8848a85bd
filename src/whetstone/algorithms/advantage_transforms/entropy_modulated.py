"""When does exploration become exploitation by itself? When confident turns count more than unsure ones.

Easy to get wrong: the weights are relative to the turns of one task's group, and average 1 there.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.sets import set_mean
from whetstone.ranges import NotNegative


def entropy_modulated(
    advantages: PerTurn,
    turn_entropies: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    *,
    strength: NotNegative = 1.0,
    min_range: NotNegative = 0.1,
) -> PerTurn:
    """Advantages times a factor that falls with the turn's mean entropy (AEM).

        h = (H − min) / (max − min) over the task's turns;   A ← A · exp(−λ h) / mean(exp(−λ h))

    If the range of entropies in a group is below `min_range`, nothing changes. Turns without action tokens (NaN) are
    in no statistic and keep theirs.

    Args:
        advantages: [M]
        turn_entropies: [M] mean over the turn's action tokens, nats; NaN for a turn without any.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        strength: λ.
        min_range: Minimum range of entropies in a group, in nats.

    Source: arXiv:2605.00425, §4.
    """
    found = advantages.double().clone()
    drawn = ~turn_entropies.isnan()
    entropy = turn_entropies.detach().double()[drawn]
    if len(entropy) == 0:
        return found
    of, count = torch.unique(group[trajectory][drawn], return_inverse=True, return_counts=True)[1:]
    low = entropy.new_zeros(len(count)).scatter_reduce_(0, of, entropy, "amin", include_self=False)[of]
    high = entropy.new_zeros(len(count)).scatter_reduce_(0, of, entropy, "amax", include_self=False)[of]
    wide = (high > low) & (high - low >= min_range)
    share = torch.where(wide, (entropy - low) / (high - low), 0.0)
    weight = (-strength * share).exp()
    found[drawn] *= torch.where(wide, weight / set_mean(weight, of), 1.0)
    return found
