"""Flow-GRPO: each turn of a module in a larger system is a sample with the outcome of the episode.

Note: Statistics over turns let long episodes count more. That is faithful, and an option.
"""

from __future__ import annotations

from typing import Literal

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import normalize_in_sets
from whetstone.bounded_types import NotNegative


def flow_grpo(
    outcomes: PerTrajectory,
    group: PerTrajectory,
    trajectory: PerTurn,
    *,
    weight: Literal["turn", "trajectory"] = "turn",
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Compute GRPO advantages over all turns of a task, each with the outcome of its trajectory (Flow-GRPO).

        A_it = (R_i − mean) / (std + ε)      mean and std over all turns of the task

    Args:
        outcomes: [N] outcome per trajectory.
        group: [N] index of the task of each trajectory.
        trajectory: [M] index of the trajectory of each turn.
        weight: Unit of the statistics; `trajectory` gives GRPO.
        epsilon: Added to deviations.

    Source: Li et al. 2025 (AgentFlow), arXiv:2510.05592, §3.2, and its code.
    """
    if weight == "trajectory":
        return normalize_in_sets(outcomes, group, epsilon=epsilon)[trajectory]
    return normalize_in_sets(outcomes[trajectory], group[trajectory], epsilon=epsilon)
