"""Which of a task's trajectories did better than its siblings? The advantage of GRPO, one number a trajectory.

Easy to get wrong: a group whose rewards are all equal has nothing to compare, and teaches exactly nothing.
"""

from __future__ import annotations

from typing import Literal

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.sets import normalised
from whetstone.ranges import DegreesOfFreedom, NotNegative


def group_relative(
    rewards: PerTrajectory,
    group: PerTrajectory,
    *,
    scale: bool = True,
    ddof: DegreesOfFreedom = 1,
    singleton: Literal["zero", "raw"] = "zero",
    epsilon: NotNegative = 1e-6,
) -> PerTrajectory:
    """How much better each trajectory did than its siblings (GRPO).

        Aᵢ = (Sᵢ − mean(S)) / (std(S) + ε)      over the trajectories of one task

    `std` is the sample deviation (n − 1). A group of one, or one whose rewards are all equal,
    has nothing to compare: its advantages are exactly 0.

    Use it where an episode has one outcome and groups are sampled; it needs nothing else.

    Args:
        rewards: [N] Sᵢ, all a trajectory earned: its outcome and its turns' rewards.
        group: [N] which task it belongs to.
        scale: Divide by the deviation; False is the mean baseline of Dr. GRPO.
        ddof: 0 for the population's deviation.
        singleton: `raw` gives a group of one its reward, as published code does.
        epsilon: Keeps almost equal rewards from exploding.

    Raises:
        ValueError: `rewards` and `group` differ in shape.

    Source: Shao et al. 2024, arXiv:2402.03300, outcome supervision; `scale=False`: Liu et al. 2025, arXiv:2503.20783.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    return normalised(rewards, group, scale=by, ddof=ddof, singleton=singleton, epsilon=epsilon)
