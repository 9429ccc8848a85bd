"""Excludes trajectories with a void turn: a turn without a tool call or an answer (SimpleTIR).

Note: The whole trajectory is excluded from the loss, but its reward stays in the group's mean and deviation.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import LossOnly, PerTrajectory, PerTurn


def void_turns(rewards: PerTrajectory, void: PerTurn, trajectory: PerTurn) -> LossOnly:
    """Exclude trajectories with a void turn from the loss (SimpleTIR).

    Args:
        rewards: [N]; only its length is used.
        void: [M] nonzero for a turn without a tool call or an answer.
        trajectory: [M] index of the trajectory of each turn.

    Source: Xue et al. 2025 (SimpleTIR), arXiv:2509.02479, §3.2.
    """
    counts = torch.zeros(len(rewards), dtype=torch.float64).index_add_(0, trajectory, (void != 0).double())
    return (counts == 0).to(torch.float64)
