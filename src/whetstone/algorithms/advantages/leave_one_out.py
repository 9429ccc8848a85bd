"""What did a trajectory do better than all its siblings together? A baseline it has no part in, so it is unbiased."""

from __future__ import annotations

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.sets import normalised


def leave_one_out(rewards: PerTrajectory, group: PerTrajectory) -> PerTrajectory:
    """Reward minus the mean of the siblings' (RLOO; LOOP inside the clipped objective).

        Aᵢ = Sᵢ − mean of the other S = G/(G − 1) · (Sᵢ − mean(S))

    Sums to 0 over a group; a group of one is 0. Published code returns the raw reward in one of its two versions.

    Use it where an unbiased gradient matters and rewards have one scale. LOOP is this with several updates a batch,
    no KL and no critic.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.

    Source: Ahmadian et al. 2024, arXiv:2402.14740, §2.2; agents: Chen et al. 2025 (LOOP), arXiv:2502.01600.
    """
    return normalised(rewards, group, center="leave_one_out", scale="none")
