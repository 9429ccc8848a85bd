"""Entropy-balanced objective: tokens above the upper clip bound keep a bounded gradient.

Note: The objective does not measure entropy; its name is that of the paper.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.bounded_types import NotNegative, Share


def entropy_balanced(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.28,
    dual_clip: float | None = 3.0,
) -> AdvantageLoss:
    """Compute a PPO loss whose upper bound caps the value and keeps the gradient (AEPO's entropy-balanced clipping).

        c(ρ) = (1 + clip_high) ρ / sg[ρ] above 1 + clip_high, the plain clip below
        L = max(−A ρ, −A c(ρ)),   for A < 0 at most −A · dual_clip

    Positive tokens have no trust region: use few updates per batch, or a KL penalty to the reference. For
    ρ ≤ 1 + clip_high it is PPO.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        advantages: [T] advantage of each token.
        clip_low: Maximum decrease of the ratio below 1.
        clip_high: Increase of the ratio above 1 at which the value is capped.
        dual_clip: Maximum ratio of a token with A < 0, above 1 + clip_high. None: no maximum.

    Raises:
        ValueError: If `dual_clip` is not above 1 + clip_high.

    Source: Dong et al. 2025 (AEPO), arXiv:2510.14545, §3.3, and its code (`dual_clip`); of a family with GPPO,
    arXiv:2508.07629.
    """
    same_length(learner_logprobs, advantages)
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ValueError(f"dual_clip must be above 1 + clip_high ({1 + clip_high:g}), got {dual_clip:g}")
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    ratio = log_ratios.exp()
    top = 1 + clip_high
    capped = torch.where(ratio > top, top * ratio / ratio.detach(), ratio.clamp(min=1 - clip_low))
    unclipped, clipped_loss = -advantages * ratio, -advantages * capped
    loss = torch.where(clipped_loss.detach() > unclipped.detach(), clipped_loss, unclipped)
    is_clipped = (ratio < 1 - clip_low) & (advantages < 0)
    is_balanced = (ratio > top) & (advantages > 0)
    fractions = {"clip_fraction": is_clipped, "balanced_fraction": is_balanced}
    if dual_clip is not None:
        cap = -advantages * dual_clip
        fractions["dual_clip_fraction"] = (advantages < 0) & (loss.detach() > cap)
        loss = torch.where(fractions["dual_clip_fraction"], cap, loss)
    return TokenLoss(loss, ratio_metrics(log_ratios, **fractions))
