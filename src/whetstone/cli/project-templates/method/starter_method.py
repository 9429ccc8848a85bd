"""A method: an advantage estimator and a loss. Both are pure functions of tensors.

Parameters name the columns that a function reads; keyword-only parameters are options of the recipe.
"""

import torch

from whetstone.algorithms import PerToken, PerTrajectory, TokenLoss


def relative(rewards: PerTrajectory, group: PerTrajectory, *, scale: float = 1.0) -> PerTrajectory:
    """Compute the advantage of each trajectory over the mean of its group.

        A_i = scale (r_i - mean(r))      over the trajectories of one task

    Args:
        rewards: [N] outcome per trajectory.
        group: [N] index of the task of each trajectory.
        scale: Factor of all advantages.

    Returns:
        [N] advantages.
    """
    advantages = torch.zeros_like(rewards)
    for task in set(group.tolist()):
        members = group == task
        advantages[members] = scale * (rewards[members] - rewards[members].mean())
    return advantages


def clamped(
    learner_logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken, *, limit: float = 0.2
) -> TokenLoss:
    """Compute the policy gradient loss with a clamped importance ratio.

        rho = exp(l - l_old),   L = -A clamp(rho, 1 - limit, 1 + limit)

    The loss has one number per token: `aggregation` averages.

    Args:
        learner_logprobs: [T] log-probs of the policy that is trained, with gradient.
        old_logprobs: [T] log-probs before the updates of the step.
        advantages: [T] advantage of each token.
        limit: Largest distance of the ratio from 1.

    Returns:
        The loss per token, and metrics per token.
    """
    ratio = (learner_logprobs - old_logprobs).exp()
    loss = -advantages * ratio.clamp(1 - limit, 1 + limit)
    return TokenLoss(loss, {"policy/ratio": ratio.detach()})
