"""REINFORCE++: returns normalized over all tokens of the batch, without groups or critic.

Note: The published return is multiplied by the mask at each step, so that it is lost at the first
observation token and early turns get no credit. Here returns only include action tokens.
"""

from __future__ import annotations

from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.axes import PerToken, PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets
from whetstone.algorithms.returns import reward_to_go
from whetstone.bounded_types import Share


def reinforce_plus_plus(token_rewards: PerToken, token_trajectory: PerToken, *, discount: Share = 1.0) -> PerToken:
    """Compute returns, normalized to mean 0 and variance 1 over the action tokens of the batch (REINFORCE++).

        A_k = (G_k − mean) / √(var + 1e-8)

    One action token, or equal returns everywhere, give zeros. Statistics are over tokens: long episodes count more.

    Use it with one episode per task, or a penalty per token (`reward_shaping: kl_penalty`).

    Args:
        token_rewards: [K] a turn's reward on its last action token, the outcome on the last of all, plus
            `reward_shaping`.
        token_trajectory: [K] index of the trajectory of each token.
        discount: γ per action token.

    Source: Hu et al. 2025, arXiv:2501.03262; differs from its code if observations are between actions.
    """
    return whitened(reward_to_go(token_rewards, token_trajectory, discount=discount))


def reinforce_plus_plus_baseline(rewards: PerTrajectory, group: PerTrajectory, token_trajectory: PerToken) -> PerToken:
    """Reward minus the group's mean, with mean 0 and variance 1 over the action tokens of the batch.

        c_i = S_i − mean of its group;   A_k = (c − mean) / √(var + 1e-8)

    Statistics are over tokens, so that the mean over trajectories is not 0.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        token_trajectory: [K] index of the trajectory of each token.

    Source: Hu et al. 2025, arXiv:2501.03262 (REINFORCE++-baseline).
    """
    return whitened(normalize_in_sets(rewards, group, scale="none")[token_trajectory])
