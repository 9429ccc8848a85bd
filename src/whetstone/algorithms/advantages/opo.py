"""OPO: the baseline with the least variance, weighted by the length of trajectories."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets, set_mean


def opo(rewards: PerTrajectory, group: PerTrajectory, lengths: PerTrajectory) -> PerTrajectory:
    """Reward minus the group's mean weighted by length (OPO).

        Aᵢ = Sᵢ − Σ L S / Σ L      over the trajectories of one task

    Equal rewards, and a group of one, give exactly 0. A group without a token is compared with its plain mean.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        lengths: [N] action tokens.

    Source: Hao et al. 2025, arXiv:2505.23585, eq. 7.
    """
    share = lengths.double() / set_mean(lengths, group).clamp(min=1e-9)
    centered = normalize_in_sets(
        rewards, group, scale="none"
    )  # Σ L (S − mean) / Σ L is the distance of the weighted mean
    return torch.where(set_mean(centered.abs(), group) == 0, 0.0, centered - set_mean(share * centered, group))
