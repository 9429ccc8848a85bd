"""Truncated importance sampling (TIS): importance weights per token with an upper bound.

With the clipped objective, whose ratio is to the policy before the update, this is decoupled PPO. The trust region is
around the fresh policy; the weight corrects for staleness and for the mismatch between sampler and learner.

Note: The weight has no gradient, and multiplies the loss after clipping, not the ratio in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND
from whetstone.bounded_types import Positive


def importance_weights(
    old_logprobs: Tensor,  # [T] of the learner before this update
    sampler_logprobs: Tensor,  # [T] of the sampler; NaN if not sampled
) -> Tensor:  # [T]
    """Compute the importance weight of each token: its probability before the update over that of the sampler.

        w = exp(ℓ_old − ℓ_sampler),   1 for tokens that were not sampled

    Without gradient; log-ratios are clamped to ±20.

    Raises:
        ValueError: If the tensors differ in shape.

    Source: Fu et al. 2025 (AReaL), arXiv:2505.24298, decoupled objective.
    """
    if old_logprobs.shape != sampler_logprobs.shape:
        shapes = [[*old_logprobs.shape], [*sampler_logprobs.shape]]
        raise ValueError(f"old and sampler log-probs must have the same shape, got {shapes}")
    log_ratio = (old_logprobs.detach() - sampler_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.where(sampler_logprobs.isnan(), 1.0, log_ratio.exp())


def truncated(
    old_logprobs: Tensor,  # [T] of the learner before this update
    sampler_logprobs: Tensor,  # [T] of the sampler; NaN if not sampled
    *,
    high: Positive = 2.0,
) -> Tensor:  # [T]
    """Compute importance weights with maximum `high` (truncated importance sampling).

    Raises:
        ValueError: If the tensors differ in shape, or `high` is not above 0.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training",
    https://fengyao.notion.site/off-policy-rl; the form is that of Ionides 2008, "Truncated importance sampling".
    """
    if high <= 0:
        raise ValueError(f"high must be above 0, got {high:g}")
    return importance_weights(old_logprobs, sampler_logprobs).clamp_max(high)
