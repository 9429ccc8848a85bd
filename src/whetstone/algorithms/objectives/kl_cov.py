"""How are the tokens that eat the entropy slowed down instead of silenced? By a penalty on how far they move."""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.ranges import NotNegative, Share


def kl_cov(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    covariance_rank: PerToken,
    *,
    fraction: Share = 2e-4,
    weight: NotNegative = 1.0,
) -> TokenLoss:
    """The unclipped surrogate, with a penalty on how far the tokens of highest covariance move (KL-Cov).

        L = −A ρ  (+ κ |ℓ − ℓ_old| for the top tokens)

    At the first update after sampling the penalty has no gradient.

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        advantages: [T]
        covariance_rank: [T] the share of the batch's tokens that have a covariance as large or larger, itself among
            them; 0 for the largest of all, which is always held back.
        fraction: How many are held back: max(1, ⌊fraction · K⌋).
        weight: κ.

    Source: Cui et al. 2025, arXiv:2505.22617, eq. 13 and 14; over the batch instead of micro-batches.
    """
    same_length(learner_logprobs, advantages, covariance_rank)
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    selected = covariance_rank <= fraction
    loss = -advantages * log_ratios.exp() + torch.where(selected, weight * log_ratios.abs(), 0.0)
    return TokenLoss(loss, ratio_metrics(log_ratios, covariance_fraction=selected))
