"""How an agent reasons, not only how it ends: turns compared with others of the same kind of thought.

Note: A turn without a tag is in no set. It has the outcome's part, and no more.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets
from whetstone.bounded_types import NotNegative, Share


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
    """Compute GRPO advantages of outcomes plus advantages of turns among those with the same tag (RLVMR).

        A_it = α z(R_i) + (1 − α) z(r_it over the task's turns with its tag)

    An untagged turn only has the first term; a tag seen once adds 0.

    Use it with `reward: meta_reasoning`, which tags turns as planning, exploring, reflecting.

    Args:
        outcomes: [N] outcome per trajectory.
        process_rewards: [M] reward of the tagged thought of each turn.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        tags: [M] the kind of thought; below 0 for none.
        weight: α, in [0, 1].
        epsilon: Added to deviations.

    Source: Zhang et al. 2025, arXiv:2507.22844, eq. 4; its code adds the second term unscaled, with a weight of 1.
    """
    of_tag = normalize_in_sets(process_rewards, combine_keys(group[trajectory], tags), epsilon=epsilon)
    of_outcome = normalize_in_sets(outcomes, group, epsilon=epsilon)[trajectory]
    return weight * of_outcome + (1 - weight) * torch.where(tags < 0, 0.0, of_tag)
