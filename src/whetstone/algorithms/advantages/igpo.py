"""IGPO: information gain of each turn, the change of the policy's probability of the gold answer.

Note: Gains and outcomes live on different scales. Normalised together the outcome drowns, or the gains do.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets
from whetstone.algorithms.returns import is_last_step, reward_to_go
from whetstone.bounded_types import NotNegative, Share


def igpo(
    outcomes: PerTrajectory,
    answer_beliefs: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    *,
    discount: Share = 1.0,
    norm: Literal["separate", "pooled", "none"] = "separate",
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Compute returns of the outcome and each turn's information gain about the gold answer (IGPO).

        r_t = p_t − p_{t−1} for t < T,   r_T = the outcome;   each z-normalised over the group
        A_t = Σ_{u ≥ t} γ^{u−t} z(r_u)

    The last turn has no gain. An episode with one turn only has its outcome; equal gains give 0.

    Use it with sparse outcomes and a known answer; it needs one scoring pass (`answer_beliefs`), no extra model.

    Args:
        outcomes: [N] outcome per trajectory.
        answer_beliefs: [M] probability of the gold answer before each turn, the mean over its tokens taken in
            logs: exp(mean log π). Under the weights that sampled the turn.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        discount: γ per turn.
        norm: Gains and outcomes each over their own (`separate`), over all of the group (`pooled`), or not at all.
        epsilon: Added to deviations.

    Source: Wang et al. 2025, arXiv:2510.14967; the released code takes returns first and subtracts means by token
    position, which are different turns in different trajectories; not reproduced.
    """
    ends = is_last_step(trajectory)
    before = answer_beliefs.double()
    after = torch.roll(before, -1)  # what follows a trajectory's last turn is not read
    raw = torch.where(ends, outcomes.double()[trajectory], after - before)
    task = group[trajectory]
    if norm == "separate":
        raw = normalize_in_sets(raw, combine_keys(task, ends), epsilon=epsilon)
    elif norm == "pooled":
        raw = normalize_in_sets(raw, task, epsilon=epsilon)
    return reward_to_go(raw, trajectory, discount=discount)
