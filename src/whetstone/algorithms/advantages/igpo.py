"""Did a turn bring the model nearer to the answer? Its own belief in the gold answer, before and after.

Easy to get wrong: gains and outcomes live on different scales. Normalised together the outcome drowns, or the gains do.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import last_of, reward_to_go
from whetstone.algorithms.sets import joint_keys, normalised
from whetstone.ranges import NotNegative, Share


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
    """What each turn adds to the belief in the gold answer, and the outcome, summed to the end (IGPO).

        r_t = p_t − p_{t−1} for t < T,   r_T = the outcome;   each z-normalised over the group
        A_t = Σ_{u ≥ t} γ^{u−t} z(r_u)

    The last turn has no gain. An episode of one turn has its outcome alone; equal gains come to 0.

    Use it with sparse outcomes and a known answer; it needs one scoring pass (`answer_beliefs`), no extra model.

    Args:
        outcomes: [N] of each trajectory.
        answer_beliefs: [M] probability of the gold answer in front of each turn, the mean over its tokens taken in
            logs: exp(mean log π). Under the weights that sampled the turn.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        discount: γ, a turn.
        norm: Gains and outcomes each over their own (`separate`), over all of the group (`pooled`), or not at all.
        epsilon: Added to deviations.

    Source: Wang et al. 2025, arXiv:2510.14967; the released code takes returns first and subtracts means by token
    position, which are different turns in different trajectories; not reproduced.
    """
    ends = last_of(trajectory)
    before = answer_beliefs.double()
    after = torch.roll(before, -1)  # what follows a trajectory's last turn is not read
    raw = torch.where(ends, outcomes.double()[trajectory], after - before)
    task = group[trajectory]
    if norm == "separate":
        raw = normalised(raw, joint_keys(task, ends), epsilon=epsilon)
    elif norm == "pooled":
        raw = normalised(raw, task, epsilon=epsilon)
    return reward_to_go(raw, trajectory, discount=discount)
