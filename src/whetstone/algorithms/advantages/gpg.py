"""What if most of a batch earned nothing? Then the rest is weighed up, so that a step is as large as ever."""

from __future__ import annotations

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.sets import normalised
from whetstone.ranges import Positive


def gpg(rewards: PerTrajectory, group: PerTrajectory, *, scale: Positive = 1.0) -> PerTrajectory:
    """Reward minus the group's mean, times trajectories over those that earned anything (GPG).

        Aᵢ = α (Sᵢ − mean(S)) / f,   α = N / number of S that are not 0

    A batch in which nobody earned anything gives zeros.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        scale: f, above 0.

    Source: Chu et al. 2025, arXiv:2504.02546, as in verl's `compute_gpg_outcome_advantage`.
    """
    earned = int((rewards != 0).sum())
    return normalised(rewards, group, scale="none") * (len(rewards) / max(1, earned) / scale)
