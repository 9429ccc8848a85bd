"""How an agent reasons, not only how it ends: turns compared with others of the same kind of thought.

Easy to get wrong: a turn without a tag is in no set. It has the outcome's part, and no more.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.sets import joint_keys, normalised
from whetstone.ranges import NotNegative, Share


def rlvmr(
    outcomes: PerTrajectory,
    process_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    tags: PerTurn,
    *,
    weight: Share = 0.5,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Outcome against the siblings, and each turn's reward against turns of the task with the same tag (RLVMR).

        A_it = α z(R_i) + (1 − α) z(r_it over the task's turns with its tag)

    An untagged turn has the first term alone; a tag seen once adds 0.

    Use it with `reward: meta_reasoning`, which tags turns as planning, exploring, reflecting.

    Args:
        outcomes: [N] of each trajectory.
        process_rewards: [M] what the turn's kind of thought earned.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        tags: [M] the kind of thought; below 0 for none.
        weight: α, in [0, 1].
        epsilon: Added to deviations.

    Source: Zhang et al. 2025, arXiv:2507.22844, eq. 4; its code adds the second term unscaled, with a weight of 1.
    """
    of_tag = normalised(process_rewards, joint_keys(group[trajectory], tags), epsilon=epsilon)
    of_outcome = normalised(outcomes, group, epsilon=epsilon)[trajectory]
    return weight * of_outcome + (1 - weight) * torch.where(tags < 0, 0.0, of_tag)
