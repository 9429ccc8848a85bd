"""Trust region on the difference of probabilities to the sampler; needs no old log-probs.

Note: A difference of probabilities is not a ratio. Rare tokens may change by a factor of four; frequent ones
are bounded.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import (
    SamplerRatioLoss,
    TokenLoss,
    log_ratio,
    ratio_metrics,
    same_length,
)
from whetstone.bounded_types import NotNegative


def probability_difference(
    learner_logprobs: PerToken,
    sampler_logprobs: PerToken,
    advantages: PerToken,
    *,
    low: NotNegative = 0.2,
    high: NotNegative = 0.2,
    pull: NotNegative = 1e-3,
) -> SamplerRatioLoss:
    """Compute an importance-weighted surrogate that drops tokens whose probability already moved too far.

        u = π − μ;   dropped: u > δ_hi with A > 0, u < −δ_lo with A < 0;   else −A exp(ℓ − ℓ_sampler)
        + τ (ℓ − ℓ_sampler)² on all tokens

    No forward pass for old log-probs is needed. The ratio includes the mismatch of sampler and learner, so the
    objective excludes `importance_correction`.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        sampler_logprobs: [T] log-probs of the sampler; the ratio of tokens that were not sampled (NaN) is 1.
        advantages: [T] advantage of each token.
        low: Maximum decrease δ_lo of a probability for tokens with A < 0.
        high: Maximum increase δ_hi of a probability for tokens with A > 0.
        pull: Weight τ of the squared log-ratio to the sampler.

    Source: prime-rl's default loss, after arXiv:2602.04879 (probabilities) and arXiv:2602.02276 (squared log-ratio).
    """
    same_length(learner_logprobs, sampler_logprobs, advantages)
    sampler = torch.where(sampler_logprobs.isnan(), learner_logprobs.detach(), sampler_logprobs)
    log_ratios = log_ratio(learner_logprobs, sampler)
    moved = learner_logprobs.detach().exp() - sampler.exp()
    dropped = ((moved > high) & (advantages > 0)) | ((moved < -low) & (advantages < 0))
    loss = torch.where(dropped, 0.0, -advantages * log_ratios.exp()) + pull * log_ratios.square()
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=dropped))
