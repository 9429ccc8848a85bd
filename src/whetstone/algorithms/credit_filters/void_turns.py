"""Which episodes drifted off? Those with a turn that neither called a tool nor answered.

Easy to get wrong: the whole trajectory leaves the loss, but its reward stays in the group's mean and deviation.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import LossOnly, PerTrajectory, PerTurn


def void_turns(rewards: PerTrajectory, void: PerTurn, trajectory: PerTurn) -> LossOnly:
    """Keeps trajectories without a void turn in the loss (SimpleTIR).

    Args:
        rewards: [N]; only how many there are is read.
        void: [M] not 0 where a turn neither called a tool nor answered.
        trajectory: [M] which trajectory the turn belongs to.

    Source: Xue et al. 2025 (SimpleTIR), arXiv:2509.02479, §3.2.
    """
    found = torch.zeros(len(rewards), dtype=torch.float64).index_add_(0, trajectory, (void != 0).double())
    return (found == 0).to(torch.float64)
