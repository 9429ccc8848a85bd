"""How do demonstrations and one's own episodes learn together? Each with its own divisor, then a weighted sum.

Easy to get wrong: a policy loss has mean near 0 and an imitation loss near 1. What is compared is their gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss, same_length


def mixed(policy_loss: Tensor, supervised_loss: Tensor, weight: float) -> Tensor:
    """(1 − μ) L_policy + μ L_supervised, both already divided by counts of their own.

    Args:
        weight: μ, in [0, 1]; `mixing_weight` is its schedule.

    Source: DataMind 2025, arXiv:2509.25084; CHORD, arXiv:2508.11408.
    """
    return (1 - weight) * policy_loss + weight * supervised_loss


def shaped_demonstration(learner_logprobs: PerToken, advantages: PerToken, *, sharpness: float = 0.1) -> TokenLoss:
    """Demonstrations that stand in the group, weighed by a curve that lets rare tokens learn (LUFFY).

        L = −A f(π),   f(x) = x / (x + γ);   on ∇ℓ a factor of γ x / (x + γ)², largest at x = γ

    The demonstrator's own probability is taken as 1; no clip. Where all of one's own episodes succeed, A is 0 and
    imitation switches itself off.

    Args:
        learner_logprobs: [T] with gradient, of demonstrated tokens.
        advantages: [T]
        sharpness: γ.

    Source: Yan et al. 2025 (LUFFY), arXiv:2504.14945, eq. 7.
    """
    same_length(learner_logprobs, advantages)
    p = learner_logprobs.exp()
    return TokenLoss(-advantages * p / (p + sharpness), {"policy/token_probability": p.detach()})


def entropy_weights(entropies: Tensor, advantages: Tensor, demonstrated: Tensor) -> Tensor:
    """[T] what SRFT weighs tokens by; no gradient.

        demonstrations ½ e^(−H);   own tokens with A > 0 ½ e^H, others 1

    Source: Fu et al. 2025 (SRFT), arXiv:2506.19767, §3.2.
    """
    h = entropies.detach()
    own = torch.where(advantages > 0, 0.5 * h.exp(), 1.0)
    return torch.where(demonstrated.bool(), 0.5 * (-h).exp(), own)
