"""MARS: advantages per role for several players or agents with different reward scales.

The turns of a role are a separate trajectory; actions of others are its observations.

Note: Sum first, then normalise. Normalised turn rewards add up to something that depends on how many turns
there were.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.axes import PerToken, PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets, set_mean
from whetstone.algorithms.returns import reward_to_go
from whetstone.bounded_types import NotNegative, Share


def mars(
    turn_rewards: PerTurn,
    trajectory: PerTurn,
    roles: PerTrajectory,
    *,
    scale: bool = False,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Compute returns over a player's turns, normalized over all turns of the same role in the batch (MARS, MARSHAL).

        A_it = G_it − mean of G over all turns of its role

    A role with one trajectory gives zeros.

    Use it for self-play, where players expect different returns.

    Args:
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        trajectory: [M] index of the trajectory (one player's side of a game) of each turn.
        roles: [N] role: the player, combined with the game if there are several.
        scale: Divide by the role's deviation.
        epsilon: Added to the deviation.

    Source: Yuan et al. 2025, arXiv:2510.15414. Not reproduced of the released pipeline, which normalises twice: the
    second time over a player's turns of all games, by the mean of the distinct values.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    to_come = reward_to_go(turn_rewards, trajectory)
    normalized = normalize_in_sets(to_come, roles[trajectory], scale=by, epsilon=epsilon)
    of, sides = torch.unique(roles, return_inverse=True, return_counts=True)[1:]
    return torch.where(sides[of][trajectory] == 1, 0.0, normalized)


def dr_mas(
    rewards: PerTrajectory, group: PerTrajectory, roles: PerTrajectory, *, epsilon: NotNegative = 1e-6
) -> PerTrajectory:
    """Compute GRPO advantages for a team, normalized within a task and a role (Dr. MAS).

        A_i = (S_i − mean) / (std + ε)      over the trajectories of its task and role

    A role that one trajectory of a task plays gives 0.

    Args:
        rewards: [N] all an agent's side of an episode earned.
        group: [N] index of the task of each trajectory.
        roles: [N] which agent it was.
        epsilon: Added to the deviation.

    Source: Feng et al. 2026, arXiv:2602.08847, and its code, whose statistics are over turns.
    """
    return normalize_in_sets(rewards, combine_keys(group, roles), epsilon=epsilon)


def role_normalized(
    token_rewards: PerToken, token_trajectory: PerToken, roles: PerTrajectory, *, discount: Share = 1.0
) -> PerToken:
    """Compute rewards-to-go with mean 0 and variance 1 over each role's action tokens of the batch (Self-RedTeam).

        A_k = (G_k − mean of its role) / √max(var of its role, 1e-8)      population variance

    A role that is frozen should not be among the trajectories at all.

    Args:
        token_rewards: [K] rewards: that of a turn at its last action token, the outcome at the last one.
        token_trajectory: [K] index of the trajectory of each token.
        roles: [N] attacker, defender, …
        discount: γ per action token.

    Source: Liu et al. 2025, arXiv:2506.07468, and its code.
    """
    to_come = reward_to_go(token_rewards, token_trajectory, discount=discount)
    role = roles[token_trajectory]
    centered = normalize_in_sets(to_come, role, scale="none")
    return centered / set_mean(centered.square(), role).clamp(min=1e-8).sqrt()
