"""How is one module of a larger system trained? Each of its turns becomes a sample with the episode's outcome.

Easy to get wrong: statistics over turns let long episodes count more. That is faithful, and an option.
"""

from __future__ import annotations

from typing import Literal

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.sets import normalised
from whetstone.ranges import NotNegative


def flow_grpo(
    outcomes: PerTrajectory,
    group: PerTrajectory,
    trajectory: PerTurn,
    *,
    weight: Literal["turn", "trajectory"] = "turn",
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """GRPO over all turns of a task, each with its trajectory's outcome (Flow-GRPO).

        A_it = (R_i − mean) / (std + ε)      mean and std over all turns of the task

    Args:
        outcomes: [N] of each trajectory.
        group: [N] which task a trajectory belongs to.
        trajectory: [M] which trajectory the turn belongs to.
        weight: What the statistics count; with `trajectory` it is GRPO.
        epsilon: Added to deviations.

    Source: Li et al. 2025 (AgentFlow), arXiv:2510.05592, §3.2, and its code.
    """
    if weight == "trajectory":
        return normalised(outcomes, group, epsilon=epsilon)[trajectory]
    return normalised(outcomes[trajectory], group[trajectory], epsilon=epsilon)
