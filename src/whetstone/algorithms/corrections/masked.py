"""Which tokens are too far from the present policy to learn from? Those whose importance weight is out of bounds.

Easy to get wrong: a token that is left out still counts in what the loss is divided by. Dividing by the rest would
let the survivors count for more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whetstone.algorithms.corrections.truncated import importance_weights


def masked(
    old_logprobs: Tensor,  # [T] the learner's own before this update
    sampler_logprobs: Tensor,  # [T] as drawn; NaN where nobody drew
    *,
    low: float = 0.0,
    high: float = 5.0,
) -> Tensor:  # [T]
    """Importance weights, 0 for those below `low` or above `high`.

    Args:
        low: Weights below it are 0.
        high: Weights above it are 0. `low: 0, high: 5` is what AReaL masks by; `low: 0.5, high: 2` or 5 is IcePop.

    Raises:
        ValueError: The tensors differ in shape, or the bounds are no interval of positive numbers.

    Source: Fu et al. 2025 (AReaL), arXiv:2505.24298; both bounds: Team Ling 2025 (IcePop), arXiv:2510.18855.
    """
    if not 0 <= low < high or math.isinf(low):
        raise ValueError(f"low is zero or more and below high: got {low:g}, {high:g}")
    weights = importance_weights(old_logprobs, sampler_logprobs)
    return torch.where((weights < low) | (weights > high), 0.0, weights)
