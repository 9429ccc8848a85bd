"""Pass@k training: only the best trajectory of a subset has an advantage, its lead."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import set_std
from whetstone.bounded_types import NotNegative


def pass_at_k(
    rewards: PerTrajectory, group: PerTrajectory, *, scale: bool = False, epsilon: NotNegative = 1e-6
) -> PerTrajectory:
    """Compute best minus second best for the best of each group, 0 for all others (pass@k, top 1).

        A_best = (S_(1) − S_(2)) / (std(S) + ε)

    Ties for the best, and a group of one, give zeros.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        scale: Whether to divide by the group's sample deviation.
        epsilon: Added to the deviation.

    Source: Tang et al. 2025, arXiv:2503.19595, as in verl's `compute_grpo_passk_outcome_advantage`.
    """
    rewards = rewards.double()
    order = torch.argsort(rewards, descending=True, stable=True)
    order = order[torch.argsort(group[order], stable=True)]  # by group, each from its best down
    best, second = order[:-1], order[1:]
    leads = torch.ones(len(order), dtype=torch.bool, device=rewards.device)
    leads[1:] = group[order][1:] != group[order][:-1]
    advantages = torch.zeros_like(rewards)
    if len(order) > 1:
        first = leads[:-1] & (group[best] == group[second])
        advantages[best[first]] = (rewards[best] - rewards[second])[first]
    return advantages / (set_std(rewards, group) + epsilon) if scale else advantages
