"""KL-Cov: penalizes the log-ratio of the tokens with the highest covariance instead of masking them."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.bounded_types import NotNegative, Share


def kl_cov(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    covariance_rank: PerToken,
    *,
    fraction: Share = 2e-4,
    weight: NotNegative = 1.0,
) -> TokenLoss:
    """Compute the unclipped surrogate with a penalty on |log-ratio| of the tokens with the highest covariance (KL-Cov).

        L = −A ρ  (+ κ |ℓ − ℓ_old| for the top tokens)

    At the first update after sampling the penalty has no gradient.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        advantages: [T] advantage of each token.
        covariance_rank: [T] fraction of the batch's tokens with a covariance at least as large, including the token;
            0 for the largest of all, which is always penalized.
        fraction: Fraction of tokens that are penalized: max(1, ⌊fraction · K⌋) tokens.
        weight: Weight κ of the penalty on |log-ratio|.

    Source: Cui et al. 2025, arXiv:2505.22617, eq. 13 and 14; over the batch instead of micro-batches.
    """
    same_length(learner_logprobs, advantages, covariance_rank)
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    selected = covariance_rank <= fraction
    loss = -advantages * log_ratios.exp() + torch.where(selected, weight * log_ratios.abs(), 0.0)
    return TokenLoss(loss, ratio_metrics(log_ratios, covariance_fraction=selected))
