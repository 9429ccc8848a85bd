"""How much does a token count that an older or slightly different policy drew? By its importance weight, up to a cap.

With the clipped objective, whose ratio is taken against the policy before the update, this is decoupled PPO: the trust
region is around the fresh policy, the weight makes up for staleness and for what sampler and learner differ in.

Easy to get wrong: the weight has no gradient, and multiplies the loss after clipping, not the ratio in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND
from whetstone.ranges import Positive


def importance_weights(
    old_logprobs: Tensor,  # [T] the learner's own before this update
    sampler_logprobs: Tensor,  # [T] as drawn; NaN where nobody drew
) -> Tensor:  # [T]
    """How much likelier each token is under the policy before the update than under the one that drew it.

        w = exp(ℓ_old − ℓ_sampler),   1 where nobody drew

    Without gradient; log-ratios are kept within ±20.

    Raises:
        ValueError: The tensors differ in shape.

    Source: Fu et al. 2025 (AReaL), arXiv:2505.24298, decoupled objective.
    """
    if old_logprobs.shape != sampler_logprobs.shape:
        shapes = [[*old_logprobs.shape], [*sampler_logprobs.shape]]
        raise ValueError(f"one sampler log-prob per token: got {shapes}")
    log_ratio = (old_logprobs.detach() - sampler_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.where(sampler_logprobs.isnan(), 1.0, log_ratio.exp())


def truncated(
    old_logprobs: Tensor,  # [T] the learner's own before this update
    sampler_logprobs: Tensor,  # [T] as drawn; NaN where nobody drew
    *,
    high: Positive = 2.0,
) -> Tensor:  # [T]
    """Importance weights, none above `high` (truncated importance sampling).

    Raises:
        ValueError: The tensors differ in shape, or `high` is not above 0.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training",
    https://fengyao.notion.site/off-policy-rl; the form is that of Ionides 2008, "Truncated importance sampling".
    """
    if high <= 0:
        raise ValueError(f"high: above 0, got {high:g}")
    return importance_weights(old_logprobs, sampler_logprobs).clamp_max(high)
