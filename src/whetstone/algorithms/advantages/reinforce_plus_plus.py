"""How does one get along without groups and without a critic? With one normalisation over all tokens of the batch.

Easy to get wrong: the published return is multiplied by the mask at each step, so that it is lost at the first
observation token and early turns get no credit. Here returns run over action tokens alone.
"""

from __future__ import annotations

from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.levels import PerToken, PerTrajectory
from whetstone.algorithms.returns import reward_to_go
from whetstone.algorithms.sets import normalised
from whetstone.ranges import Share


def reinforce_plus_plus(token_rewards: PerToken, token_trajectory: PerToken, *, discount: Share = 1.0) -> PerToken:
    """Rewards to come, with mean 0 and variance 1 over the action tokens of the batch (REINFORCE++).

        A_k = (G_k − mean) / √(var + 1e-8)

    One action token, or equal returns everywhere, give zeros. Statistics are over tokens: long episodes count more.

    Use it with one episode a task, or a penalty per token (`reward_shaping: kl_penalty`).

    Args:
        token_rewards: [K] a turn's reward on its last action token, the outcome on the last of all, with what
            `reward_shaping` adds.
        token_trajectory: [K] which trajectory the token belongs to.
        discount: γ, an action token.

    Source: Hu et al. 2025, arXiv:2501.03262; departs from its code where observations lie between actions.
    """
    return whitened(reward_to_go(token_rewards, token_trajectory, discount=discount))


def reinforce_plus_plus_baseline(rewards: PerTrajectory, group: PerTrajectory, token_trajectory: PerToken) -> PerToken:
    """Reward minus the group's mean, with mean 0 and variance 1 over the action tokens of the batch.

        c_i = S_i − mean of its group;   A_k = (c − mean) / √(var + 1e-8)

    Statistics are over tokens, so that the mean over trajectories is not 0.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        token_trajectory: [K] which trajectory the token belongs to.

    Source: Hu et al. 2025, arXiv:2501.03262 (REINFORCE++-baseline).
    """
    return whitened(normalised(rewards, group, scale="none")[token_trajectory])
