"""Entropy regularization: an entropy bonus, and a penalty outside of a band around the past entropy (EPO).

Note: A penalty that is a constant inside, outside and at the edge of a band has no gradient. As published,
EPO's smoothing changes the reported loss and nothing else.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss


def entropy_bonus(entropies: PerToken) -> TokenLoss:
    """Return minus the entropy of the next-token distribution, at the sampler's temperature.

        L = −H,   ∂H/∂z = −p (log p + H)

    Weights of 0 to 0.001 are usual; above, agents' call syntax gets noisy.

    Args:
        entropies: [T] entropies of the next-token distributions in nats, with gradient.

    Source: Williams & Peng 1991; verl's `compute_entropy_loss`.
    """
    return TokenLoss(-entropies, {"policy/entropy_bonus": entropies.detach()})


def entropy_smoothing(
    entropies: PerToken,
    usual_entropies: PerToken,
    *,
    low: float = 0.8,
    high: float = 1.2,
    size: float = 0.1,
    strength: float = 20.0,
    form: Literal["hinge", "indicator"] = "hinge",
) -> TokenLoss:
    """Compute an entropy bonus that weakens or changes sign when entropy leaves the band of its past values (EPO).

        L = −(H − s P),   hinge: P = α (relu(κ_l H̄ − H) + relu(H − κ_r H̄)),   indicator: P = α outside of the band

    With b = α s the gradient in H is −(1 + b) below the band, −1 inside, −(1 − b) above: below b = 1 it is a bonus
    everywhere, at 1 it stops above the band, beyond 1 it pulls entropy down there. `indicator` is the released code:
    its P has no gradient.

    Args:
        entropies: [T] entropies of the next-token distributions in nats, with gradient.
        usual_entropies: [T] H̄, the mean of recent updates at the same turn; NaN without a past, then P is 0.
        low: Lower bound κ_l of the band, as a multiple of the past entropy.
        high: Upper bound κ_r of the band, as a multiple of the past entropy.
        size: Size α of the penalty outside of the band.
        strength: s, the coefficient times the phase weight.
        form: Form of the penalty P.

    Source: Xu et al. 2025 (EPO), arXiv:2509.22576, §4, and its code; the hinge and s = 20 are additions.
    """
    known = ~usual_entropies.isnan()
    usual = usual_entropies.detach().nan_to_num(0.0)
    if form == "hinge":
        outside = torch.relu(low * usual - entropies) + torch.relu(entropies - high * usual)
        penalty = size * torch.where(known, outside, 0.0)
    else:
        inside = (entropies > low * usual) & (entropies < high * usual)
        penalty = size * (known & ~inside).to(entropies)
    loss = -(entropies - strength * penalty)
    return TokenLoss(loss, {"policy/entropy_out_of_band_fraction": (penalty.detach() > 0).to(entropies.dtype)})


def usual_entropy(past: Tensor, counts: Tensor) -> Tensor:
    """Compute the mean entropy at each turn index over a window of updates, [S]; NaN without such a turn.

    Args:
        past: [W, S] sums of entropy at each turn index, one row per update.
        counts: [W, S] number of tokens in each sum.

    Source: Xu et al. 2025 (EPO), arXiv:2509.22576, §4.2; a window, aligned at the first turn, instead of all epochs
    aligned at the last.
    """
    return past.sum(0) / counts.sum(0)
