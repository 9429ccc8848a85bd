"""Clipped surrogate objective of PPO, one loss per token.

Note: Clipping stops a token from moving *further*, never from moving back. A token that is
already on the wrong side keeps its full gradient.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.bounded_types import NotNegative, Share


def clipped(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.2,
    dual_clip: float | None = None,
) -> AdvantageLoss:
    """Compute the clipped surrogate objective (PPO) per token.

        ρ = exp(ℓ − ℓ_old)
        L = max(−A ρ, −A clip(ρ, 1 − clip_low, 1 + clip_high)),   for A < 0 at most −A · dual_clip

    A = 0 gives exactly 0. At ρ = 1, the first update after sampling, the gradient is −A. Log-ratios are clamped
    to ±20 before the exponential; beyond, the token has no gradient.

    Use it when a batch is used for more than one update, or was sampled by an older policy.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        advantages: [T] advantage of each token.
        clip_low: Maximum decrease of the ratio below 1, in [0, 1].
        clip_high: Maximum increase of the ratio above 1; larger than `clip_low` is the clip-higher of DAPO.
        dual_clip: Maximum ratio of a token with A < 0, above 1 + clip_high: 3; agents far off-policy
            use 10. None: no maximum.

    Raises:
        ValueError: If the tensors differ in shape, or a clip width is out of range.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; `clip_high`: Yu et al. 2025, arXiv:2503.14476, eq. 10;
    `dual_clip`: Ye et al. 2019, arXiv:1912.09729, eq. 5.
    """
    same_length(learner_logprobs, advantages)
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(f"clip_low must be in [0, 1] and clip_high at least 0, got {clip_low:g} and {clip_high:g}")
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ValueError(f"dual_clip must be above 1 + clip_high ({1 + clip_high:g}), got {dual_clip:g}")
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    ratio = log_ratios.exp()
    unclipped = -advantages * ratio
    clipped_loss = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(unclipped, clipped_loss)
    dual = torch.zeros_like(unclipped, dtype=torch.bool)
    if dual_clip is not None:
        cap = -advantages * dual_clip
        dual = (advantages < 0) & (loss > cap)
        loss = torch.where(advantages < 0, torch.minimum(loss, cap), loss)
    is_clipped = clipped_loss > unclipped
    metrics = ratio_metrics(
        log_ratios,
        clip_fraction=is_clipped,
        clip_high_fraction=is_clipped & (advantages > 0),
        clip_low_fraction=is_clipped & (advantages < 0),
    )
    if dual_clip is not None:
        metrics["policy/dual_clip_fraction"] = dual.to(ratio.dtype)
    return TokenLoss(loss, metrics)
