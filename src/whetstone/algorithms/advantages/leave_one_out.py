"""RLOO: the baseline of a trajectory is the mean reward of the others of its group, so it is unbiased."""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets


def leave_one_out(rewards: PerTrajectory, group: PerTrajectory) -> PerTrajectory:
    """Reward minus the mean of the siblings' (RLOO; LOOP inside the clipped objective).

        Aᵢ = Sᵢ − mean of the other S = G/(G − 1) · (Sᵢ − mean(S))

    Sums to 0 over a group; a group of one is 0. Published code returns the raw reward in one of its two versions.

    Use it if an unbiased gradient matters and rewards have one scale. LOOP is this with several updates a batch,
    no KL and no critic.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.

    Source: Ahmadian et al. 2024, arXiv:2402.14740, §2.2; agents: Chen et al. 2025 (LOOP), arXiv:2502.01600.
    """
    return normalize_in_sets(rewards, group, center="leave_one_out", scale="none")
