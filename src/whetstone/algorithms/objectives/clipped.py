"""How far may one update move the policy? The clipped surrogate of PPO, one loss a token.

Easy to get wrong: clipping stops a token from moving *further*, never from moving back. A token that is
already on the wrong side keeps its full gradient.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.ranges import NotNegative, Share


def clipped(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.2,
    dual_clip: float | None = None,
) -> AdvantageLoss:
    """The clipped surrogate objective (PPO), token by token.

        ρ = exp(ℓ − ℓ_old)
        L = max(−A ρ, −A clip(ρ, 1 − clip_low, 1 + clip_high)),   for A < 0 at most −A · dual_clip

    A = 0 gives exactly 0. At ρ = 1, the first update after sampling, the gradient is −A. Log-ratios are kept
    within ±20 before the exponential; beyond, the token has no gradient.

    Use it wherever a batch is learned from more than once, or was sampled by an older policy.

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        advantages: [T]
        clip_low: How far the ratio may fall below 1, in [0, 1].
        clip_high: How far it may rise above 1; larger than `clip_low` is the clip-higher of DAPO.
        dual_clip: Largest ratio a token with A < 0 is pushed down by, above 1 + clip_high: 3; agents far off-policy
            use 10. None: any.

    Raises:
        ValueError: The tensors differ in shape, or a clip width is out of range.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; `clip_high`: Yu et al. 2025, arXiv:2503.14476, eq. 10;
    `dual_clip`: Ye et al. 2019, arXiv:1912.09729, eq. 5.
    """
    same_length(learner_logprobs, advantages)
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(f"clip_low is in [0, 1] and clip_high at least 0: got {clip_low:g}, {clip_high:g}")
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ValueError(f"dual_clip is above 1 + clip_high ({1 + clip_high:g}): got {dual_clip:g}")
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    ratio = log_ratios.exp()
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, held)
    dual = torch.zeros_like(free, dtype=torch.bool)
    if dual_clip is not None:
        cap = -advantages * dual_clip
        dual = (advantages < 0) & (loss > cap)
        loss = torch.where(advantages < 0, torch.minimum(loss, cap), loss)
    stopped = held > free
    metrics = ratio_metrics(
        log_ratios,
        clip_fraction=stopped,
        clip_high_fraction=stopped & (advantages > 0),
        clip_low_fraction=stopped & (advantages < 0),
    )
    if dual_clip is not None:
        metrics["policy/dual_clip_fraction"] = dual.to(ratio.dtype)
    return TokenLoss(loss, metrics)
