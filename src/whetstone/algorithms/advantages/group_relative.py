"""Which of a task's trajectories did better than its siblings? The advantage of GRPO, one number a trajectory.

Easy to get wrong: a group whose rewards are all equal has nothing to compare. The mean of equal floats can be
one ulp away from them, and that ulp over ε is noise the size of a signal.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_relative(
    rewards: Tensor,  # [N] one outcome per trajectory
    group: Tensor,  # [N] which task the trajectory belongs to
    *,
    scale: bool = True,
    epsilon: float = 1e-6,
) -> Tensor:  # [N]
    """How much better each trajectory did than its siblings (GRPO).

        Aᵢ = (rᵢ − mean(r)) / (std(r) + ε)      over the trajectories of one task

    `std` is the sample deviation (n − 1). A group of one, or one whose rewards are all equal,
    has nothing to compare: its advantages are exactly 0.

    Args:
        scale: Divide by the deviation; False is the mean baseline of Dr. GRPO.
        epsilon: Keeps almost equal rewards from exploding.

    Raises:
        ValueError: `rewards` and `group` differ in shape.

    Source: Shao et al. 2024, arXiv:2402.03300, outcome supervision; `scale=False`: Liu et al. 2025, arXiv:2503.20783.
    """
    if rewards.shape != group.shape:
        raise ValueError(f"one group per reward: got rewards {[*rewards.shape]}, group {[*group.shape]}")
    advantages = torch.zeros_like(rewards)
    for g in torch.unique(group):
        members = group == g
        r = rewards[members]
        if (r == r[0]).all():
            continue
        centred = r - r.mean()
        advantages[members] = centred / (r.std() + epsilon) if scale else centred
    return advantages
