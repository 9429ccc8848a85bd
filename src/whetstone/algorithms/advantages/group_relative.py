"""GRPO advantages: rewards normalized within the group of trajectories of a task.

Note: A group with equal rewards has advantages of exactly 0.
"""

from __future__ import annotations

from typing import Literal

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets
from whetstone.bounded_types import DegreesOfFreedom, NotNegative


def group_relative(
    rewards: PerTrajectory,
    group: PerTrajectory,
    *,
    scale: bool = True,
    ddof: DegreesOfFreedom = 1,
    singleton: Literal["zero", "raw"] = "zero",
    epsilon: NotNegative = 1e-6,
) -> PerTrajectory:
    """Compute GRPO advantages: rewards normalized within a group.

        Aᵢ = (Sᵢ − mean(S)) / (std(S) + ε)      over the trajectories of one task

    `std` is the sample deviation (n − 1). If a group has one member or equal rewards,
    its advantages are exactly 0.

    Use it for groups of episodes with one outcome each.

    Args:
        rewards: [N] Sᵢ, total reward per trajectory: outcome plus turn rewards.
        group: [N] index of the task of each trajectory.
        scale: Divide by the standard deviation; False gives the mean baseline of Dr. GRPO.
        ddof: Degrees of freedom of the deviation; 0 for the population's.
        singleton: `raw` gives a group of one its reward, as published code does.
        epsilon: Added to the standard deviation.

    Raises:
        ValueError: `rewards` and `group` differ in shape.

    Source: Shao et al. 2024, arXiv:2402.03300, outcome supervision; `scale=False`: Liu et al. 2025, arXiv:2503.20783.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    return normalize_in_sets(rewards, group, scale=by, ddof=ddof, singleton=singleton, epsilon=epsilon)
