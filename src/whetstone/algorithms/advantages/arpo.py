"""ARPO: tokens before a fork receive the mean advantage of its branches (hard attribution).

Note: Trained in each branch with that branch's own advantage (soft attribution, which is GRPO on
flattened trajectories) the gradient is the same at ratio 1. They part once the clip acts.
"""

from __future__ import annotations

from typing import Literal

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets, set_mean
from whetstone.bounded_types import DegreesOfFreedom, NotNegative


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
    """Compute GRPO advantages over all branches of a task; shared turns have the mean of their branches (ARPO).

        A_i = z(S_i) over all trajectories of the task;   hard: A(n) = mean of A_i over i through n

    Use it with a strategy that forks at uncertain turns.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        trajectory: [M] index of the trajectory of each turn.
        nodes: [M] identity of each turn; shared turns of forks have the same value.
        attribution: `soft` leaves each branch its own advantage, as the released code does.
        ddof: Degrees of freedom of the deviation; 0 for the population's.
        epsilon: Added to deviations.

    Source: Dong et al. 2025, arXiv:2507.19849, §3.2.
    """
    each = normalize_in_sets(rewards, group, ddof=ddof, epsilon=epsilon)[trajectory]
    return each if attribution == "soft" else set_mean(each, combine_keys(group[trajectory], nodes))
