"""A global result and a local sense of each step: the second is added behind the group's normalisation.

Easy to get wrong: inside it a penalty for one step would be divided by the deviation of outcomes.
"""

from __future__ import annotations

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.sets import normalised
from whetstone.ranges import NotNegative


def hrpo(
    outcomes: PerTrajectory,
    process_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    *,
    weight: NotNegative = 0.5,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Outcome against the siblings, plus what the turn itself earned or cost (HRPO of MasHost).

        A_it = z(R_i) + η u_it

    Args:
        outcomes: [N] of each trajectory, such as accuracy minus cost.
        process_rewards: [M] u, such as −1 for a step that changed nothing.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        weight: η.
        epsilon: Added to the deviation.

    Source: Yang et al. 2025 (MasHost), arXiv:2506.08507; rebuilt from its abstract, form and η are ours.
    """
    return normalised(outcomes, group, epsilon=epsilon)[trajectory] + weight * process_rewards.double()
