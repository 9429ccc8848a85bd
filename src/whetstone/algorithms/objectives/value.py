"""How does a critic learn? By its distance to what it should have foretold.

Easy to get wrong: targets and old values are fixed before the update; only the values at hand have gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.objectives.token_loss import TokenLoss
from whetstone.ranges import Positive


def squared_value(critic_values: Tensor, critic_targets: Tensor) -> TokenLoss:
    """Half the squared error of a critic.

        L = ½ (V − target)²

    Args:
        critic_values: [T] or [T, heads] with gradient.
        critic_targets: The same shape, without; where one is NaN nothing is predicted, and the loss is 0.

    Returns:
        [T], heads summed.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 9, without its clipping; twin critics with slow targets sum
    their errors, Zhou et al. 2024 (ArCHer), arXiv:2402.19446, eq. 6 and 7.
    """
    wanted = ~critic_targets.isnan()
    error = (critic_values - critic_targets.detach()).masked_fill(~wanted, 0.0)
    return _of_heads(0.5 * error.square(), error.detach().abs().masked_fill(~wanted, torch.nan))


def clipped_value(
    critic_values: Tensor, old_critic_values: Tensor, critic_targets: Tensor, *, clip: Positive = 0.2
) -> TokenLoss:
    """Half the squared error, or that of the value kept near the old one, whichever is larger.

        L = ½ max((V − target)², (clip(V, V_old ± ε) − target)²)

    No gradient where the second is larger and the value is beyond the bound.

    Args:
        critic_values: [T] or [T, heads] with gradient.
        old_critic_values: Before the update.
        critic_targets: NaN where nothing is predicted.
        clip: ε, in units of return.

    Source: Schulman et al. 2017, arXiv:1707.06347, as in verl's `compute_value_loss`.
    """
    wanted = ~critic_targets.isnan()
    values, targets, old_values = critic_values, critic_targets.detach(), old_critic_values.detach()
    error = (values - targets).masked_fill(~wanted, 0.0)
    held = old_values + (values - old_values).clamp(-clip, clip)
    held_error = (held - targets).masked_fill(~wanted, 0.0)
    return _of_heads(
        0.5 * torch.maximum(error.square(), held_error.square()),
        error.detach().abs().masked_fill(~wanted, torch.nan),
    )


def success_value(critic_values: Tensor, critic_targets: Tensor) -> TokenLoss:
    """Cross-entropy of a probability of success with what came about.

        L = −y log p − (1 − y) log(1 − p)

    Probabilities are kept 1e-6 away from 0 and 1.

    Args:
        critic_values: [T] or [T, heads] probabilities, with gradient.
        critic_targets: 0 or 1, or between; NaN where nothing is predicted.

    Source: Bai et al. 2024 (DigiRL), arXiv:2406.11896, §4.2; Qi et al. 2024 (WebRL), arXiv:2411.02337.
    """
    wanted = ~critic_targets.isnan()
    y = critic_targets.detach().nan_to_num(0.0)
    p = critic_values.clamp(1e-6, 1 - 1e-6)
    loss = -(y * p.log() + (1 - y) * (1 - p).log()).masked_fill(~wanted, 0.0)
    return _of_heads(loss, (critic_values.detach() - y).abs().masked_fill(~wanted, torch.nan))


def value_slope(critic_values: Tensor, value_slopes: Tensor) -> TokenLoss:
    """A penalty on values by its derivative in each of them, at the values before the update.

        L = Σ_heads s V

    Args:
        critic_values: [T, heads] with gradient.
        value_slopes: [T, heads] s; see `simulation_penalty`.

    Source: Niu et al. 2022, arXiv:2206.13464, eq. 7, to first order.
    """
    return TokenLoss((value_slopes * critic_values).sum(1), {})


def _of_heads(loss: Tensor, error: Tensor) -> TokenLoss:
    if loss.ndim == 2:
        loss, error = loss.sum(1), error.nanmean(1)
    return TokenLoss(loss, {"value/loss": error})
