"""How does an expert's trace give a signal to whole episodes? Returns that stop where the expert had to step in.

Easy to get wrong: credit never flows back across a turn that was patched; what came after was the expert's doing.
"""

from __future__ import annotations

from typing import Literal

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import reward_to_go
from whetstone.algorithms.sets import joint_keys, normalised


def ui_s1(
    rewards: PerTrajectory,
    turn_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    turn_index: PerTurn,
    matched: PerTurn,
    *,
    discount: float = 0.5,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    scale: bool = True,
    epsilon: float = 1e-6,
) -> PerTurn:
    """The episode against its siblings, and each turn against the same turn of its siblings (UI-S1).

        G_t = r_t + γ G_{t+1} where the turn matched the expert's, else r_t
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

    Source: Lu et al. 2025, arXiv:2509.11543, and its code; statistics over trajectories, the code's are over turns.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    to_come = reward_to_go(turn_rewards, trajectory, discount=discount, stop=matched == 0)
    of_step = normalised(to_come, joint_keys(group[trajectory], turn_index), scale=by, epsilon=epsilon)
    of_episode = normalised(rewards, group, scale=by, epsilon=epsilon)[trajectory]
    return episode_weight * of_episode + step_weight * of_step
