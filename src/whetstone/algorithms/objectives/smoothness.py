"""How do stored data keep their hold where fresh states lie a little beside them? What is said there is said here, too.

Easy to get wrong: both sides have gradient. With one of them fixed, the other only follows it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss


def consistency(now: Tensor, perturbed: Tensor) -> TokenLoss:
    """Half the squared difference between what is said of a state and of one a little beside it (RO2O).

        ½ (f(s) − f(s̃))²,   gradient through both

    Of log-probs of the action taken it is an estimate of the divergence of the two policies, from the tokens that were
    drawn; of values it is their smoothness. By analogy: states are continuous there and are moved by noise; a text is,
    where each of its words' embeddings is moved a little, alike wherever the word stands.

    Args:
        now: [T] or [T, heads] with gradient.
        perturbed: The same shape, with gradient.

    Returns:
        [T], heads summed.

    Source: Wen et al. 2023 (RO2O), arXiv:2309.16973, eq. 7 and 9; the estimate from drawn tokens is Schulman's k2.
    """
    apart = 0.5 * (now - perturbed).square()
    loss = apart.sum(1) if apart.ndim == 2 else apart
    return TokenLoss(loss, {"consistency/apart": loss.detach()})


def policy_consistency(learner_logprobs: PerToken, perturbed_logprobs: PerToken) -> TokenLoss:
    """`consistency` of the log-probs of two forward passes, one of them with noisy embeddings.

    Source: Wen et al. 2023 (RO2O), arXiv:2309.16973, eq. 9.
    """
    penalty = consistency(learner_logprobs, perturbed_logprobs)
    return TokenLoss(penalty.loss, {"consistency/policy": penalty.loss.detach()})


def value_consistency(critic_values: Tensor, perturbed_critic_values: Tensor, critic_targets: Tensor) -> TokenLoss:
    """`consistency` of the values of two forward passes, at tokens with a target.

    Args:
        critic_values: [T, heads] with gradient.
        perturbed_critic_values: [T, heads] of the pass with noisy embeddings, with gradient.
        critic_targets: [T, heads] NaN for a value without a target, whose loss is 0.

    Source: Wen et al. 2023 (RO2O), arXiv:2309.16973, eq. 7.
    """
    absent = critic_targets.isnan()
    penalty = consistency(critic_values.masked_fill(absent, 0.0), perturbed_critic_values.masked_fill(absent, 0.0))
    reported = penalty.loss.detach().masked_fill(absent.all(1), torch.nan)
    return TokenLoss(penalty.loss, {"consistency/value": reported})
