"""What should the tokens in front of a fork receive? What its branches receive in the mean (hard attribution).

Easy to get wrong: trained in each branch with that branch's own advantage (soft attribution, which is GRPO on
flattened trajectories) the gradient is the same at ratio 1. They part once the clip acts.
"""

from __future__ import annotations

from typing import Literal

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.sets import joint_keys, normalised, set_mean
from whetstone.ranges import DegreesOfFreedom, NotNegative


def arpo(
    rewards: PerTrajectory,
    group: PerTrajectory,
    trajectory: PerTurn,
    nodes: PerTurn,
    *,
    attribution: Literal["soft", "hard"] = "hard",
    ddof: DegreesOfFreedom = 1,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """GRPO over all branches of a task; shared turns get the mean of the branches through them (ARPO).

        A_i = z(S_i) over all trajectories of the task;   hard: A(n) = mean of A_i over i through n

    Use it with a strategy that forks where the policy is unsure.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task a trajectory belongs to.
        trajectory: [M] which trajectory the turn belongs to.
        nodes: [M] the turn's identity.
        attribution: `soft` leaves each branch its own advantage, as the released code does.
        ddof: 0 for the population's deviation.
        epsilon: Added to deviations.

    Source: Dong et al. 2025, arXiv:2507.19849, §3.2.
    """
    each = normalised(rewards, group, ddof=ddof, epsilon=epsilon)[trajectory]
    return each if attribution == "soft" else set_mean(each, joint_keys(group[trajectory], nodes))
