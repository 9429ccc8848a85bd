"""Masked importance sampling: excludes tokens with an importance weight outside of bounds.

Note: A masked token still counts in the divisor of the loss. Otherwise the remaining tokens would have a larger
weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whetstone.algorithms.importance_sampling.truncated import importance_weights


def masked(
    old_logprobs: Tensor,  # [T] of the learner before this update
    sampler_logprobs: Tensor,  # [T] of the sampler; NaN if not sampled
    *,
    low: float = 0.0,
    high: float = 5.0,
) -> Tensor:  # [T]
    """Compute importance weights, with those below `low` or above `high` set to 0.

    Args:
        low: Weights below it are 0.
        high: Weights above it are 0. AReaL uses `low: 0, high: 5`; IcePop uses `low: 0.5, high: 2` or 5.

    Raises:
        ValueError: If the tensors differ in shape, or the bounds are not 0 ≤ low < high.

    Source: Fu et al. 2025 (AReaL), arXiv:2505.24298; both bounds: Team Ling 2025 (IcePop), arXiv:2510.18855.
    """
    if not 0 <= low < high or math.isinf(low):
        raise ValueError(f"low must be at least 0 and below high, got {low:g} and {high:g}")
    weights = importance_weights(old_logprobs, sampler_logprobs)
    return torch.where((weights < low) | (weights > high), 0.0, weights)
