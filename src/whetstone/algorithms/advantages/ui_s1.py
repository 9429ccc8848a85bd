"""UI-S1: semi-online rollouts on expert traces, with returns that stop at expert interventions.

Note: A patched turn is isolated. Later results depend on the expert, and an earlier turn must not get the reward of
a turn that missed the expert's action.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets
from whetstone.algorithms.returns import next_values, reward_to_go
from whetstone.bounded_types import NotNegative, Share


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
    """Compare the episode with its group, and each turn with the same turn of the others in the group (UI-S1).

        G_t = r_t + γ G_{t+1} where both turns matched the expert's, else r_t
        A_it = ω_E z(S_i) + ω_S z(G_it over the task's turns number t)

    Use it with expert traces: `matched` is 1 if the episode continued with the model's action, 0 if with the expert's.

    Args:
        rewards: [N] total reward per trajectory.
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        turn_index: [M] position of each turn in its trajectory.
        matched: [M] nonzero if the model's action agreed with the expert's.
        discount: γ per turn.
        episode_weight: ω_E.
        step_weight: ω_S.
        scale: Divide by deviations; else only centred.
        epsilon: Added to deviations.

    Source: Lu et al. 2025, arXiv:2509.11543, and its code. Differs from it: statistics are over trajectories, and S is
    all a trajectory earned; the code compares each turn's own score with those of all turns.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    missed = matched == 0
    next_missed = next_values(missed, trajectory, torch.ones(len(group), dtype=torch.bool))
    to_come = reward_to_go(turn_rewards, trajectory, discount=discount, stop=missed | next_missed)
    of_step = normalize_in_sets(to_come, combine_keys(group[trajectory], turn_index), scale=by, epsilon=epsilon)
    of_episode = normalize_in_sets(rewards, group, scale=by, epsilon=epsilon)[trajectory]
    return episode_weight * of_episode + step_weight * of_step
