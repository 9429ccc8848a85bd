"""GMPO: geometric mean of token ratios, each clipped in log space."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.gspo import sequence_mean
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.bounded_types import Positive


def gmpo(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    sequence: PerToken,
    *,
    clip: Positive = 0.4,
) -> AdvantageLoss:
    """Compute a loss from the geometric mean of ratios, each clipped in the direction of its advantage (GMPO).

        d_k = ℓ − ℓ_old, at most ε if A > 0, at least −ε if A < 0
        L = −A exp(mean of d),   A the sequence's mean advantage

    ε is in log space: 0.4 bounds a ratio by e^0.4 ≈ 1.49. Use it with `aggregation: sequence_mean`.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        advantages: [T] advantage of each token.
        sequence: [T] index of the trajectory of each token.
        clip: Maximum |log-ratio| ε of a token in the direction of its advantage.

    Source: Zhao et al. 2025, arXiv:2507.20673, eq. 4, and verl's `geo_mean`.
    """
    same_length(learner_logprobs, advantages, sequence)
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    credit = sequence_mean(advantages, sequence)
    clipped_ratios = torch.where(credit > 0, log_ratios.clamp(max=clip), log_ratios.clamp(min=-clip))
    is_clipped = clipped_ratios.detach() != log_ratios.detach()
    # the value at each token is that of the sequence; the gradient is the token's part of the sequence's gradient
    mean = sequence_mean(clipped_ratios.detach(), sequence)
    loss = -credit * (mean + clipped_ratios - clipped_ratios.detach()).exp()
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=is_clipped))
