"""Result of an objective: a loss per token without normalization, and metrics.

Note: Division is aggregation, and aggregation is selected separately (`aggregation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND, kl_estimate


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss per token with its metrics."""

    loss: Tensor
    """[T] loss per token, not normalized."""
    metrics: dict[str, Tensor]
    """Name → [T], averaged over all tokens of the update with a value; NaN for tokens without one."""


AdvantageLoss = Annotated[TokenLoss, "flat_without_advantage"]
"""Loss that is exactly 0 for tokens with advantage 0, with gradient 0: such tokens need no backward pass."""


SamplerRatioLoss = Annotated[TokenLoss, "ratio_to_sampler"]
"""Loss whose ratio is to the sampler, so that no importance sampling correction may be used with it."""


def log_ratio(learner_logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """Compute ℓ − ℓ_other within ±20, [T], with gradient only through the first.

    Raises:
        ValueError: If the tensors differ in shape.

    Source: the clamp of verl's `compute_policy_loss`, for arXiv:1707.06347.
    """
    if learner_logprobs.shape != other_logprobs.shape:
        shapes = [[*x.shape] for x in (learner_logprobs, other_logprobs)]
        raise ValueError(f"log-probs must have the same shape, got {shapes}")
    return (learner_logprobs - other_logprobs.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def ratio_metrics(log_ratios: Tensor, **fractions: Tensor) -> dict[str, Tensor]:
    """Return the metrics of an objective with a ratio: mean ratio, KL to the old policy, clamped tokens.

    Args:
        log_ratios: [T] log-ratios, within ±20.
        fractions: [T] further columns to report, by metric name.

    Source: Schulman et al. 2017, arXiv:1707.06347; k3: see `kl_estimate`.
    """
    with torch.no_grad():
        ratio = log_ratios.detach().exp()
        metrics = {
            "policy/ratio": ratio,
            "policy/update_kl": kl_estimate(-log_ratios.detach(), "k3"),
            "policy/log_ratio_clamped_fraction": (log_ratios.detach().abs() >= LOG_RATIO_BOUND).to(ratio.dtype),
        }
        return metrics | {f"policy/{name}": value.to(ratio.dtype) for name, value in fractions.items()}


def same_length(*columns: Tensor) -> None:
    """Check that all columns have one number per token.

    Raises:
        ValueError: If the tensors differ in shape.

    Source: the shapes of arXiv:1707.06347, eq. 7.
    """
    if len({column.shape for column in columns}) > 1:
        raise ValueError(f"columns must have the same shape, got {[[*c.shape] for c in columns]}")
