"""What does an objective return? A loss per token that nothing was divided by, and what to report of it.

Easy to get wrong: division is aggregation, and aggregation is a choice of its own (`aggregation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND, kl_estimate


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss per token and what to report of it."""

    loss: Tensor
    """[T] not yet divided by anything."""
    metrics: dict[str, Tensor]
    """Each [T], to be averaged over all tokens of the update that say something; the others are NaN."""


AdvantageLoss = Annotated[TokenLoss, "flat_without_advantage"]
"""A loss whose value and gradient are exactly 0 where the advantage is: such tokens need no backward pass."""


SamplerRatioLoss = Annotated[TokenLoss, "ratio_to_sampler"]
"""A loss whose ratio is to the sampler itself, so that no correction may be used with it."""


def log_ratio(learner_logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """[T] ℓ − ℓ_other, within ±20; gradient through the first alone.

    Raises:
        ValueError: The tensors differ in shape.

    Source: the clamp of verl's `compute_policy_loss`, for arXiv:1707.06347.
    """
    if learner_logprobs.shape != other_logprobs.shape:
        shapes = [[*x.shape] for x in (learner_logprobs, other_logprobs)]
        raise ValueError(f"one old log-prob and one advantage per token: got {shapes}")
    return (learner_logprobs - other_logprobs.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def ratio_metrics(log_ratios: Tensor, **fractions: Tensor) -> dict[str, Tensor]:
    """What every objective with a ratio reports: the ratio, k3 to the old policy, clamps, and fractions of its own.

    Source: Schulman et al. 2017, arXiv:1707.06347; k3: see `kl_estimate`.
    """
    with torch.no_grad():
        ratio = log_ratios.detach().exp()
        found = {
            "policy/ratio": ratio,
            "policy/update_kl": kl_estimate(-log_ratios.detach(), "k3"),
            "policy/log_ratio_clamped_fraction": (log_ratios.detach().abs() >= LOG_RATIO_BOUND).to(ratio.dtype),
        }
        return found | {f"policy/{name}": value.to(ratio.dtype) for name, value in fractions.items()}


def same_length(*columns: Tensor) -> None:
    """Check that there is one number of each per token.

    Raises:
        ValueError: The tensors differ in shape.

    Source: the shapes of arXiv:1707.06347, eq. 7.
    """
    if len({column.shape for column in columns}) > 1:
        raise ValueError(f"one old log-prob and one advantage per token: got {[[*c.shape] for c in columns]}")
