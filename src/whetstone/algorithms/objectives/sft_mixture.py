"""Mixture of policy loss and imitation loss, each with a separate divisor.

Note: A policy loss has mean near 0 and an imitation loss near 1. Compare their gradients, not their values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss, same_length


def mix_losses(policy_loss: Tensor, supervised_loss: Tensor, weight: float) -> Tensor:
    """Return (1 − μ) L_policy + μ L_supervised, each already divided by its own count.

    Args:
        weight: μ, in [0, 1]; `mixing_weight` is its schedule.

    Source: DataMind 2025, arXiv:2509.25084; CHORD, arXiv:2508.11408.
    """
    return (1 - weight) * policy_loss + weight * supervised_loss


def shaped_demonstration(learner_logprobs: PerToken, advantages: PerToken, *, sharpness: float = 0.1) -> TokenLoss:
    """Compute a loss for demonstrations in a group, shaped so that improbable tokens are trained (LUFFY).

        L = −A f(π),   f(x) = x / (x + γ);   on ∇ℓ a factor of γ x / (x + γ)², largest at x = γ

    The demonstrator's probability is taken as 1; no clip. If all sampled episodes of the group succeed, A is 0 and
    there is no imitation.

    Args:
        learner_logprobs: [T] log-probs of demonstrated tokens, with gradient.
        advantages: [T] advantage of each token.
        sharpness: Probability γ at which the gradient is largest.

    Source: Yan et al. 2025 (LUFFY), arXiv:2504.14945, eq. 7.
    """
    same_length(learner_logprobs, advantages)
    p = learner_logprobs.exp()
    return TokenLoss(-advantages * p / (p + sharpness), {"policy/token_probability": p.detach()})


def entropy_weights(entropies: Tensor, advantages: Tensor, demonstrated: Tensor) -> Tensor:
    """Compute the token weights of SRFT, [T], without gradient.

        demonstrations ½ e^(−H);   own tokens with A > 0 ½ e^H, others 1

    Source: Fu et al. 2025 (SRFT), arXiv:2506.19767, §3.2.
    """
    h = entropies.detach()
    own = torch.where(advantages > 0, 0.5 * h.exp(), 1.0)
    return torch.where(demonstrated.bool(), 0.5 * (-h).exp(), own)
