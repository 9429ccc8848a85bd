"""How does an expert's trace give a signal to whole episodes? Returns that stop where the expert had to step in.

Easy to get wrong: a patched turn stands alone. What came after was the expert's doing, and what the turn itself earned
by missing the expert's action is nothing that an earlier turn should be paid for.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import following, reward_to_go
from whetstone.algorithms.sets import joint_keys, normalised
from whetstone.ranges import NotNegative, Share


def ui_s1(
    rewards: PerTrajectory,
    turn_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    turn_index: PerTurn,
    matched: PerTurn,
    *,
    discount: Share = 0.5,
    episode_weight: NotNegative = 1.0,
    step_weight: NotNegative = 1.0,
    scale: bool = True,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """The episode against its siblings, and each turn against the same turn of its siblings (UI-S1).

        G_t = r_t + γ G_{t+1} where both turns matched the expert's, else r_t
        A_it = ω_E z(S_i) + ω_S z(G_it over the task's turns number t)

    Use it with expert traces: `matched` says whether the model's own action went on, or the expert's.

    Args:
        rewards: [N] all a trajectory earned.
        turn_rewards: [M] of each turn, the outcome with the last.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        turn_index: [M] its number in the trajectory.
        matched: [M] not 0 where the model's action agreed with the expert's.
        discount: γ, a turn.
        episode_weight: ω_E.
        step_weight: ω_S.
        scale: Divide by deviations; else only centred.
        epsilon: Added to deviations.

    Source: Lu et al. 2025, arXiv:2509.11543, and its code. Departs from it: statistics are over trajectories, and S is
    all a trajectory earned; the code compares each turn's own score with those of all turns.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    missed = matched == 0
    next_missed = following(missed, trajectory, torch.ones(len(group), dtype=torch.bool))
    to_come = reward_to_go(turn_rewards, trajectory, discount=discount, stop=missed | next_missed)
    of_step = normalised(to_come, joint_keys(group[trajectory], turn_index), scale=by, epsilon=epsilon)
    of_episode = normalised(rewards, group, scale=by, epsilon=epsilon)[trajectory]
    return episode_weight * of_episode + step_weight * of_step
