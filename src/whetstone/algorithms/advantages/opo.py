"""Which baseline has the least variance? One in which long episodes count more, since they have more gradient."""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.sets import normalised, set_mean


def opo(rewards: PerTrajectory, group: PerTrajectory, lengths: PerTrajectory) -> PerTrajectory:
    """Reward minus the group's mean weighted by length (OPO).

        Aᵢ = Sᵢ − Σ L S / Σ L      over the trajectories of one task

    Equal rewards, and a group of one, give exactly 0. A group without a token is compared with its plain mean.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        lengths: [N] action tokens.

    Source: Hao et al. 2025, arXiv:2505.23585, eq. 7.
    """
    share = lengths.double() / set_mean(lengths, group).clamp(min=1e-9)
    apart = normalised(rewards, group, scale="none")  # Σ L (S − mean) / Σ L is how far the weighted mean lies from it
    return torch.where(set_mean(apart.abs(), group) == 0, 0.0, apart - set_mean(share * apart, group))
