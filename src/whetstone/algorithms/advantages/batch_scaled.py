"""Advantages with a group baseline and the standard deviation of the whole batch (Lite-PPO).

Note: The deviation is of the raw rewards, not of the centered ones, and includes groups without variance.
So credit is computed before any filter that drops them.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets
from whetstone.bounded_types import DegreesOfFreedom, NotNegative


def batch_scaled(
    rewards: PerTrajectory, group: PerTrajectory, *, ddof: DegreesOfFreedom = 1, epsilon: NotNegative = 1e-6
) -> PerTrajectory:
    """Compute advantages with the group's mean as baseline, divided by the batch's standard deviation (Lite-PPO).

        Aᵢ = (Sᵢ − mean of its group) / (std of all S + ε)

    A batch of identical rewards gives zeros. With several learners the deviation is over all their trajectories.

    Use it if tasks differ much in difficulty; it needs what GRPO needs.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        ddof: Degrees of freedom of the deviation; 0 for the population's.
        epsilon: Added to the deviation.

    Source: Liu et al. 2025, "Part I: Tricks or Traps?", arXiv:2508.08221, §4.1; TRL's `scale_rewards="batch"`.
    """
    return normalize_in_sets(rewards, group, scale="batch", ddof=ddof, epsilon=epsilon)
