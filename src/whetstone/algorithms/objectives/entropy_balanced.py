"""What becomes of tokens the policy was unsure about? Above the upper bound they keep a bounded gradient.

Easy to get wrong: no test of entropy is made. The name says which tokens end up there.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.ranges import NotNegative, Share


def entropy_balanced(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.28,
    dual_clip: float | None = 3.0,
) -> AdvantageLoss:
    """PPO whose upper bound caps the value and keeps the gradient (AEPO's entropy-balanced clipping).

        c(ρ) = (1 + clip_high) ρ / sg[ρ] above 1 + clip_high, the plain clip below
        L = max(−A ρ, −A c(ρ)),   for A < 0 at most −A · dual_clip

    Nothing stops a positive token: few updates a batch, or a pull to the reference. Where ρ ≤ 1 + clip_high it is PPO.

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        advantages: [T]
        clip_low: How far the ratio may fall below 1.
        clip_high: Where the value is capped.
        dual_clip: Largest ratio a token with A < 0 is pushed down by, above 1 + clip_high. None: any.

    Raises:
        ValueError: `dual_clip` is not above 1 + clip_high.

    Source: Dong et al. 2025 (AEPO), arXiv:2510.14545, §3.3, and its code (`dual_clip`); of a family with GPPO,
    arXiv:2508.07629.
    """
    same_length(learner_logprobs, advantages)
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ValueError(f"dual_clip is above 1 + clip_high ({1 + clip_high:g}): got {dual_clip:g}")
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    ratio = log_ratios.exp()
    top = 1 + clip_high
    capped = torch.where(ratio > top, top * ratio / ratio.detach(), ratio.clamp(min=1 - clip_low))
    free, held = -advantages * ratio, -advantages * capped
    loss = torch.where(held.detach() > free.detach(), held, free)
    stopped = (ratio < 1 - clip_low) & (advantages < 0)
    kept = (ratio > top) & (advantages > 0)
    fractions = {"clip_fraction": stopped, "balanced_fraction": kept}
    if dual_clip is not None:
        cap = -advantages * dual_clip
        fractions["dual_clip_fraction"] = (advantages < 0) & (loss.detach() > cap)
        loss = torch.where(fractions["dual_clip_fraction"], cap, loss)
    return TokenLoss(loss, ratio_metrics(log_ratios, **fractions))
