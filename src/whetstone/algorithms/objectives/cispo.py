"""What if no token may be silenced? The ratio becomes a weight, bounded and without gradient.

Easy to get wrong: the value is no bound and no metric, it contains ℓ itself. Only its gradient means something.
"""

from __future__ import annotations

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.ranges import NotNegative, Positive


def cispo(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    ratio_max: Positive = 5.0,
    ratio_min: NotNegative = 0.0,
) -> AdvantageLoss:
    """Policy gradient weighted by a bounded ratio (CISPO).

        L = −sg[clip(ρ, ratio_min, ratio_max)] A ℓ

    Unbounded it is importance-weighted REINFORCE; inside the bounds its gradient is PPO's.

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        advantages: [T]
        ratio_max: The bound itself, not its distance from 1.
        ratio_min: 0 as in the paper.

    Raises:
        ValueError: The bounds are no interval.

    Source: MiniMax 2025 (MiniMax-M1), arXiv:2506.13585, eq. 4 and 5; the default bound is ours.
    """
    same_length(learner_logprobs, advantages)
    if not 0 <= ratio_min <= ratio_max:
        raise ValueError(f"ratio_min is at least 0 and at most ratio_max: got {ratio_min:g}, {ratio_max:g}")
    log_ratios = log_ratio(learner_logprobs, old_logprobs).detach()
    ratio = log_ratios.exp()
    weight = ratio.clamp(ratio_min, ratio_max)
    loss = -weight * advantages * learner_logprobs
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=weight != ratio))
