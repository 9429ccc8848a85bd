"""HRPO: normalized outcomes of a group plus unnormalized rewards of turns.

Note: Inside it a penalty for one step would be divided by the deviation of outcomes.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import normalize_in_sets
from whetstone.bounded_types import NotNegative


def hrpo(
    outcomes: PerTrajectory,
    process_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    *,
    weight: NotNegative = 0.5,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Compute GRPO advantages of the outcome plus the reward or cost of each turn (HRPO of MasHost).

        A_it = z(R_i) + η u_it

    Args:
        outcomes: [N] of each trajectory, such as accuracy minus cost.
        process_rewards: [M] u, such as −1 for a step that changed nothing.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        weight: Weight η of the reward or cost of each turn.
        epsilon: Added to the deviation.

    Source: Yang et al. 2025 (MasHost), arXiv:2506.08507; rebuilt from its abstract, form and η are additions.
    """
    return normalize_in_sets(outcomes, group, epsilon=epsilon)[trajectory] + weight * process_rewards.double()
