"""Consistency regularization: penalizes differences of outputs on clean and on perturbed embeddings (RO2O).

Note: Both sides have a gradient. With one of them fixed, the other would only follow it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss


def consistency(now: Tensor, perturbed: Tensor) -> TokenLoss:
    """Compute half the squared difference between the outputs of a state and of a perturbed one (RO2O).

        ½ (f(s) − f(s̃))²,   gradient through both

    For log-probs of the sampled action it estimates the divergence of the two policies; for values it measures their
    smoothness. By analogy: there states are continuous and perturbed by noise; here the embedding of each word is
    perturbed, by the same noise at all positions of the word.

    Args:
        now: [T] or [T, heads] with gradient.
        perturbed: The same shape, with gradient.

    Returns:
        [T], heads summed.

    Source: Wen et al. 2023 (RO2O), arXiv:2309.16973, eq. 7 and 9; the estimate from sampled tokens is Schulman's k2.
    """
    squares = 0.5 * (now - perturbed).square()
    loss = squares.sum(1) if squares.ndim == 2 else squares
    return TokenLoss(loss, {"consistency/apart": loss.detach()})


def policy_consistency(learner_logprobs: PerToken, perturbed_logprobs: PerToken) -> TokenLoss:
    """Compute `consistency` of the log-probs of two forward passes, one of them with noisy embeddings.

    Source: Wen et al. 2023 (RO2O), arXiv:2309.16973, eq. 9.
    """
    penalty = consistency(learner_logprobs, perturbed_logprobs)
    return TokenLoss(penalty.loss, {"consistency/policy": penalty.loss.detach()})


def value_consistency(critic_values: Tensor, perturbed_critic_values: Tensor, critic_targets: Tensor) -> TokenLoss:
    """Compute `consistency` of the values of two forward passes, at tokens with a target.

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
