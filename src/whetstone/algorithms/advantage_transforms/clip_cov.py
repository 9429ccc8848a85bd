"""Clip-Cov: masks a few tokens with a high covariance of log-prob and advantage, which reduce entropy most.

Note: Means and samples are over the batch, since micro-batches depend on the memory. A masked token still counts in
the divisor of the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerToken
from whetstone.bounded_types import Share


def covariances(advantages: Tensor, old_logprobs: Tensor) -> Tensor:
    """Compute each token's part of the covariance of advantage and log-prob over the batch, [K].

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
    """Set the advantages of a few random tokens with low < covariance < high to 0 (Clip-Cov).

    The number of tokens is max(1, ⌊fraction · K⌋), or that of all candidates if there are fewer. With the clipped
    objective this is the paper's loss.

    Args:
        advantages: [K] advantage of each action token.
        old_logprobs: [K] log-probs of the learner before the update.
        draws: [K] uniform random numbers of this update; the candidates with the smallest ones are selected.
        fraction: Fraction of all tokens whose gradient is removed.
        low: Minimum covariance; SPEAR's replay uses 1 to 40 or 2 to 60, and a fraction of 0.02.
        high: Maximum covariance.

    Source: Cui et al. 2025, arXiv:2505.22617, eq. 11 and 12; over the batch instead of micro-batches, and without
    excluding the tokens that PPO clips; before the first update there are none.
    """
    covariance = covariances(advantages.double(), old_logprobs.double())
    candidates = torch.nonzero((covariance > low) & (covariance < high)).flatten()
    count = min(len(candidates), max(1, int(fraction * len(covariance))))
    masked = advantages.clone()
    masked[candidates[torch.argsort(draws[candidates], stable=True)[:count]]] = 0.0
    return masked
