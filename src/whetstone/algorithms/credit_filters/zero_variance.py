"""Which groups say nothing? Those whose trajectories all earned the same.

Easy to get wrong: their advantages are 0 anyway. What changes without them is what the others are divided by: the count
of tokens, and the deviation of the batch.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import BeforeBaseline, PerTrajectory
from whetstone.algorithms.sets import set_std, sets_of
from whetstone.ranges import NotNegative


def zero_variance(rewards: PerTrajectory, group: PerTrajectory, *, min_std: NotNegative = 0.0) -> BeforeBaseline:
    """Keeps groups whose rewards differ (DAPO's dynamic sampling, without sampling anew).

    A group of one has nothing to differ from, and stays.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        min_std: Groups whose deviation (the population's) is not above it leave too; UI-S1 asks for 0.3.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, §3.2; the bound: arXiv:2509.11543.
    """
    of, count = sets_of(group)
    return ((set_std(rewards, group, ddof=0) > min_std) | (count[of] == 1)).to(torch.float64)
