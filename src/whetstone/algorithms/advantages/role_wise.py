"""How are several players or agents credited whose rewards have different scales? Each against its own kind.

A role's turns are a trajectory of their own; what the others did is observation to it.

Easy to get wrong: sum first, then normalise. Normalised turn rewards add up to something that depends on how many turns
there were.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.levels import PerToken, PerTrajectory, PerTurn
from whetstone.algorithms.returns import reward_to_go
from whetstone.algorithms.sets import joint_keys, normalised, set_mean
from whetstone.ranges import NotNegative, Share


def mars(
    turn_rewards: PerTurn,
    trajectory: PerTurn,
    roles: PerTrajectory,
    *,
    scale: bool = False,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Rewards to come over a player's own turns, against all turns of the same role in the batch (MARS, MARSHAL).

        A_it = G_it − mean of G over all turns of its role

    A role with one trajectory gives zeros: it would be compared with itself alone.

    Use it for self-play, where players expect different returns.

    Args:
        turn_rewards: [M] of each turn, the outcome with the last.
        trajectory: [M] which trajectory, one player's side of a game, the turn belongs to.
        roles: [N] the player, and the game where the tasks are of several.
        scale: Divide by the role's deviation.
        epsilon: Added to the deviation.

    Source: Yuan et al. 2025, arXiv:2510.15414. Not reproduced of the released pipeline, which normalises twice: the
    second time over a player's turns of all games, by the mean of the distinct values.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    to_come = reward_to_go(turn_rewards, trajectory)
    found = normalised(to_come, roles[trajectory], scale=by, epsilon=epsilon)
    of, sides = torch.unique(roles, return_inverse=True, return_counts=True)[1:]
    return torch.where(sides[of][trajectory] == 1, 0.0, found)


def dr_mas(
    rewards: PerTrajectory, group: PerTrajectory, roles: PerTrajectory, *, epsilon: NotNegative = 1e-6
) -> PerTrajectory:
    """GRPO for a team: compared within a task and a role (Dr. MAS).

        A_i = (S_i − mean) / (std + ε)      over the trajectories of its task and role

    A role that one trajectory of a task plays gives 0.

    Args:
        rewards: [N] all an agent's side of an episode earned.
        group: [N] which task it belongs to.
        roles: [N] which agent it was.
        epsilon: Added to the deviation.

    Source: Feng et al. 2026, arXiv:2602.08847, and its code, whose statistics are over turns.
    """
    return normalised(rewards, joint_keys(group, roles), epsilon=epsilon)


def role_normalized(
    token_rewards: PerToken, token_trajectory: PerToken, roles: PerTrajectory, *, discount: Share = 1.0
) -> PerToken:
    """Rewards to come, with mean 0 and variance 1 over each role's action tokens of the batch (Self-RedTeam).

        A_k = (G_k − mean of its role) / √max(var of its role, 1e-8)      population variance

    A role that is frozen should not be among the trajectories at all.

    Args:
        token_rewards: [K] a turn's reward on its last action token, the outcome on the last of all.
        token_trajectory: [K] which trajectory the token belongs to.
        roles: [N] attacker, defender, …
        discount: γ, an action token.

    Source: Liu et al. 2025, arXiv:2506.07468, and its code.
    """
    to_come = reward_to_go(token_rewards, token_trajectory, discount=discount)
    role = roles[token_trajectory]
    apart = normalised(to_come, role, scale="none")
    return apart / set_mean(apart.square(), role).clamp(min=1e-8).sqrt()
