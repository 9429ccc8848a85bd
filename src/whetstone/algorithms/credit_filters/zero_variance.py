"""Removes groups whose trajectories have equal rewards.

Note: Their advantages are 0 anyway. Without them the divisors of the others change: the number of tokens,
and the deviation of the batch.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import BeforeBaseline, PerTrajectory
from whetstone.algorithms.group_statistics import index_sets, set_std
from whetstone.bounded_types import NotNegative


def zero_variance(rewards: PerTrajectory, group: PerTrajectory, *, min_std: NotNegative = 0.0) -> BeforeBaseline:
    """Exclude groups with equal rewards (DAPO's dynamic sampling, without resampling).

    Groups of one are kept.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        min_std: Groups whose population standard deviation is not above it are excluded; UI-S1 uses 0.3.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, §3.2; the bound: arXiv:2509.11543.
    """
    of, count = index_sets(group)
    return ((set_std(rewards, group, ddof=0) > min_std) | (count[of] == 1)).to(torch.float64)
