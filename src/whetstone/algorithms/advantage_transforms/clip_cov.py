"""Which tokens eat the entropy? Those where likelihood and credit go together most; a few of them are silenced.

Easy to get wrong: means and draws over a micro-batch would depend on how an update was cut. They are over the batch,
and a silenced token stays in what the loss is divided by.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerToken
from whetstone.ranges import Share


def covariances(advantages: Tensor, old_logprobs: Tensor) -> Tensor:
    """[K] each token's share of the covariance of credit and log-prob, over all tokens of a batch.

        (A − mean A)(ℓ − mean ℓ)

    Source: Cui et al. 2025, arXiv:2505.22617, eq. 10.
    """
    if len(advantages) == 0:
        return advantages
    return (advantages - advantages.mean()) * (old_logprobs - old_logprobs.mean())


def clip_cov(
    advantages: PerToken,
    old_logprobs: PerToken,
    draws: PerToken,
    *,
    fraction: Share = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> PerToken:
    """Advantages, 0 for max(1, ⌊share · K⌋) tokens drawn from those with low < covariance < high (Clip-Cov).

    With the clipped objective it is the paper's loss. No candidate, no change.

    Args:
        advantages: [K]
        old_logprobs: [K] the learner's before the update.
        draws: [K] uniform numbers of this update; the smallest among the candidates are taken.
        fraction: Fraction of all tokens whose gradient is removed.
        low: Least covariance; SPEAR's replay takes 1 to 40 or 2 to 60, and a share of 0.02.
        high: Largest.

    Source: Cui et al. 2025, arXiv:2505.22617, eq. 11 and 12; over the batch instead of micro-batches, and without
    asking first which tokens PPO clips, which none is before the first update.
    """
    covariance = covariances(advantages.double(), old_logprobs.double())
    candidates = torch.nonzero((covariance > low) & (covariance < high)).flatten()
    count = min(len(candidates), max(1, int(fraction * len(covariance))))
    found = advantages.clone()
    found[candidates[torch.argsort(draws[candidates], stable=True)[:count]]] = 0.0
    return found
