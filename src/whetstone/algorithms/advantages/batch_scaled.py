"""How is a group's own deviation kept from blowing up easy and hard tasks? By the deviation of the whole batch.

Easy to get wrong: the deviation is of the raw rewards, not of the centred ones, and groups without variance are in it.
So credit comes before any filter that drops them.
"""

from __future__ import annotations

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.sets import normalised
from whetstone.ranges import DegreesOfFreedom, NotNegative


def batch_scaled(
    rewards: PerTrajectory, group: PerTrajectory, *, ddof: DegreesOfFreedom = 1, epsilon: NotNegative = 1e-6
) -> PerTrajectory:
    """How much better each trajectory did than its siblings, in deviations of the batch (Lite-PPO).

        Aᵢ = (Sᵢ − mean of its group) / (std of all S + ε)

    A batch of identical rewards gives zeros. With several learners the deviation is over all their trajectories.

    Use it where tasks differ much in difficulty; it needs what GRPO needs.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        ddof: 0 for the population's deviation.
        epsilon: Added to the deviation.

    Source: Liu et al. 2025, "Part I: Tricks or Traps?", arXiv:2508.08221, §4.1; TRL's `scale_rewards="batch"`.
    """
    return normalised(rewards, group, scale="batch", ddof=ddof, epsilon=epsilon)
