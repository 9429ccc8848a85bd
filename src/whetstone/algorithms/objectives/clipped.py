"""How far may one update move the policy? The clipped surrogate of PPO, one loss a token.

Easy to get wrong: clipping stops a token from moving *further*, never from moving back. A token that is
already on the wrong side keeps its full gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss per token and what to report of it."""

    loss: Tensor
    """[T] not yet divided by anything."""
    metrics: dict[str, Tensor]
    """Each [T], to be averaged over all tokens of the update."""


def clipped(
    learner_logprobs: Tensor,  # [T] with gradient
    old_logprobs: Tensor,  # [T] the learner's own before this update
    advantages: Tensor,  # [T]
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> TokenLoss:
    """The clipped surrogate objective (PPO), token by token.

        ρ = exp(ℓ − ℓ_old)
        L = max(−A ρ, −A clip(ρ, 1 − clip_low, 1 + clip_high))

    A = 0 gives exactly 0. At ρ = 1, the first update after sampling, the gradient is −A. Log-ratios are kept
    within ±20 before the exponential; beyond, the token has no gradient.

    Args:
        clip_low: How far the ratio may fall below 1, in [0, 1].
        clip_high: How far it may rise above 1; larger than `clip_low` is the clip-higher of DAPO.

    Raises:
        ValueError: The tensors differ in shape, or a clip width is out of range.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; `clip_high`: Yu et al. 2025, arXiv:2503.14476, eq. 10.
    """
    if not learner_logprobs.shape == old_logprobs.shape == advantages.shape:
        shapes = [[*x.shape] for x in (learner_logprobs, old_logprobs, advantages)]
        raise ValueError(f"one old log-prob and one advantage per token: got {shapes}")
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(f"clip_low is in [0, 1] and clip_high at least 0: got {clip_low:g}, {clip_high:g}")
    log_ratio = (learner_logprobs - old_logprobs.detach()).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)
    ratio = log_ratio.exp()
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    with torch.no_grad():
        metrics = {
            "policy/clip_fraction": (held > free).to(ratio.dtype),
            "policy/ratio": ratio.detach(),
            # k3 of Schulman's estimators for KL(old ‖ new): non-negative, low variance
            "policy/kl": ratio.detach() - 1 - log_ratio.detach(),
        }
    return TokenLoss(torch.maximum(free, held), metrics)
