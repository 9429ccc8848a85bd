"""What becomes of tokens the policy was unsure about? Above the upper bound they keep a bounded gradient.

Easy to get wrong: no test of entropy is made. The name says which tokens end up there.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss, log_ratio, ratio_metrics, same_length


def entropy_balanced(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> TokenLoss:
    """PPO whose upper bound caps the value and keeps the gradient (AEPO's entropy-balanced clipping).

        c(ρ) = (1 + clip_high) ρ / sg[ρ] above 1 + clip_high, the plain clip below
        L = max(−A ρ, −A c(ρ))

    Nothing stops a positive token: few updates a batch, or a pull to the reference. Where ρ ≤ 1 + clip_high it is PPO.

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        advantages: [T]
        clip_low: How far the ratio may fall below 1.
        clip_high: Where the value is capped.

    Source: Dong et al. 2025 (AEPO), arXiv:2510.14545, §3.3; of a family with GPPO, arXiv:2508.07629.
    """
    same_length(learner_logprobs, old_logprobs, advantages)
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    ratio = log_ratios.exp()
    top = 1 + clip_high
    capped = torch.where(ratio > top, top * ratio / ratio.detach(), ratio.clamp(min=1 - clip_low))
    free, held = -advantages * ratio, -advantages * capped
    loss = torch.where(held.detach() > free.detach(), held, free)
    stopped = (ratio < 1 - clip_low) & (advantages < 0)
    kept = (ratio > top) & (advantages > 0)
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=stopped, balanced_fraction=kept))
