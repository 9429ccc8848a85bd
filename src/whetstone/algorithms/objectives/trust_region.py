"""What bounds an update where nobody measured the old policy? How far probabilities have moved from the sampler's.

Easy to get wrong: a difference of probabilities is not a ratio. Rare tokens may move by a factor of four; frequent ones
are held.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import (
    SamplerRatioLoss,
    TokenLoss,
    log_ratio,
    ratio_metrics,
    same_length,
)
from whetstone.ranges import NotNegative


def probability_difference(
    learner_logprobs: PerToken,
    sampler_logprobs: PerToken,
    advantages: PerToken,
    *,
    low: NotNegative = 0.2,
    high: NotNegative = 0.2,
    pull: NotNegative = 1e-3,
) -> SamplerRatioLoss:
    """Importance-weighted surrogate without tokens whose probability moved too far the way they are pushed.

        u = π − μ;   dropped: u > δ_hi with A > 0, u < −δ_lo with A < 0;   else −A exp(ℓ − ℓ_sampler)
        + τ (ℓ − ℓ_sampler)² on all tokens

    No pass for old log-probs is needed. The ratio carries the mismatch, so the objective excludes
    `importance_correction`.

    Args:
        learner_logprobs: [T] with gradient.
        sampler_logprobs: [T] as drawn; where nobody drew (NaN) the token's ratio is 1.
        advantages: [T]
        low: δ_lo.
        high: δ_hi.
        pull: τ.

    Source: prime-rl's default loss, after arXiv:2602.04879 (probabilities) and arXiv:2602.02276 (squared log-ratio).
    """
    same_length(learner_logprobs, sampler_logprobs, advantages)
    sampler = torch.where(sampler_logprobs.isnan(), learner_logprobs.detach(), sampler_logprobs)
    log_ratios = log_ratio(learner_logprobs, sampler)
    moved = learner_logprobs.detach().exp() - sampler.exp()
    dropped = ((moved > high) & (advantages > 0)) | ((moved < -low) & (advantages < 0))
    loss = torch.where(dropped, 0.0, -advantages * log_ratios.exp()) + pull * log_ratios.square()
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=dropped))
