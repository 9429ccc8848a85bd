"""GPG: group baseline with a larger weight if many trajectories have no reward."""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets
from whetstone.bounded_types import Positive


def gpg(rewards: PerTrajectory, group: PerTrajectory, *, scale: Positive = 1.0) -> PerTrajectory:
    """Compute the reward minus the group mean, scaled by the inverse fraction of nonzero rewards (GPG).

        Aᵢ = α (Sᵢ − mean(S)) / f,   α = N / number of S that are not 0

    A batch without rewards gives zeros.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        scale: Factor f by which advantages are divided, above 0.

    Source: Chu et al. 2025, arXiv:2504.02546, as in verl's `compute_gpg_outcome_advantage`.
    """
    earned = int((rewards != 0).sum())
    return normalize_in_sets(rewards, group, scale="none") * (len(rewards) / max(1, earned) / scale)
