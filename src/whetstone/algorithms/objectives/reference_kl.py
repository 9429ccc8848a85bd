"""How is a policy kept near the one it started from? By a penalty on the KL divergence, token by token.

Easy to get wrong: the log-ratio itself (k1) in the loss has an expected gradient of zero and holds nothing. Half its
square (k2) has the gradient of the reverse KL on samples of the policy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.objectives.clipped import TokenLoss

_LOG_RATIO_BOUND = 20.0


def reference_kl(
    learner_logprobs: Tensor,  # [T] with gradient
    reference_logprobs: Tensor,  # [T] under the frozen reference, at the same temperature
) -> TokenLoss:
    """An estimate of KL(policy ‖ reference) per token whose gradient is that of the KL.

        d = ℓ − ℓ_ref,   L = d² / 2      (k2)

    Equal policies give exactly 0 and no gradient. Log-ratios are kept within ±20.

    Raises:
        ValueError: The tensors differ in shape.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html; why k2 belongs in the loss: arXiv:2510.01555.
    """
    if learner_logprobs.shape != reference_logprobs.shape:
        shapes = [[*learner_logprobs.shape], [*reference_logprobs.shape]]
        raise ValueError(f"one reference log-prob per token: got {shapes}")
    d = (learner_logprobs - reference_logprobs.detach()).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)
    with torch.no_grad():
        metrics = {"policy/reference_kl": (-d).exp() - 1 + d}
    return TokenLoss(d.square() / 2, metrics)
