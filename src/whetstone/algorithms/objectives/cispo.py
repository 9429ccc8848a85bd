"""CISPO: policy gradient weighted by a bounded importance ratio without gradient, so that no token is clipped away.

Note: The value of the loss contains ℓ itself and is not a bound or metric. Only its gradient is meaningful.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.bounded_types import NotNegative, Positive


def cispo(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    max_ratio: Positive = 5.0,
    min_ratio: NotNegative = 0.0,
) -> AdvantageLoss:
    """Compute the policy gradient loss weighted by a bounded ratio (CISPO).

        L = −sg[clip(ρ, min_ratio, max_ratio)] A ℓ

    Unbounded it is importance-weighted REINFORCE; inside the bounds its gradient is PPO's.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        advantages: [T] advantage of each token.
        max_ratio: Upper bound of the ratio itself, not its distance from 1.
        min_ratio: Lower bound of the ratio; 0 in the paper.

    Raises:
        ValueError: If the bounds are not 0 ≤ min_ratio ≤ max_ratio.

    Source: MiniMax 2025 (MiniMax-M1), arXiv:2506.13585, eq. 4 and 5; the default bound is an addition.
    """
    same_length(learner_logprobs, advantages)
    if not 0 <= min_ratio <= max_ratio:
        raise ValueError(f"min_ratio must be at least 0 and at most max_ratio, got {min_ratio:g}, {max_ratio:g}")
    log_ratios = log_ratio(learner_logprobs, old_logprobs).detach()
    ratio = log_ratios.exp()
    weight = ratio.clamp(min_ratio, max_ratio)
    loss = -weight * advantages * learner_logprobs
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=weight != ratio))
