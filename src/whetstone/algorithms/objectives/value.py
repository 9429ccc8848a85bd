"""Value losses of critics: squared error, clipped squared error and cross-entropy.

Note: Targets and old values are fixed before the update; only the current values have a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.objectives.token_loss import TokenLoss
from whetstone.bounded_types import Positive


def squared_value(critic_values: Tensor, critic_targets: Tensor) -> TokenLoss:
    """Compute half the squared error of a critic.

        L = ½ (V − target)²

    Args:
        critic_values: [T] or [T, heads] with gradient.
        critic_targets: The same shape, without gradient; NaN for values without a target, whose loss is 0.

    Returns:
        [T], heads summed.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 9, without its clipping; twin critics with slow targets sum
    their errors, Zhou et al. 2024 (ArCHer), arXiv:2402.19446, eq. 6 and 7.
    """
    wanted = ~critic_targets.isnan()
    error = (critic_values - critic_targets.detach()).masked_fill(~wanted, 0.0)
    return _sum_heads(0.5 * error.square(), error.detach().abs().masked_fill(~wanted, torch.nan))


def clipped_value(
    critic_values: Tensor, old_critic_values: Tensor, critic_targets: Tensor, *, clip: Positive = 0.2
) -> TokenLoss:
    """Compute the larger of half the squared error and that of the value clipped around the old one.

        L = ½ max((V − target)², (clip(V, V_old ± ε) − target)²)

    There is no gradient if the second is larger and the value is beyond the bound.

    Args:
        critic_values: [T] or [T, heads] with gradient.
        old_critic_values: The same shape, values before the update.
        critic_targets: The same shape; NaN for values without a target.
        clip: Clip width ε around the old value, in units of return.

    Source: Schulman et al. 2017, arXiv:1707.06347, as in verl's `compute_value_loss`.
    """
    wanted = ~critic_targets.isnan()
    values, targets, old_values = critic_values, critic_targets.detach(), old_critic_values.detach()
    error = (values - targets).masked_fill(~wanted, 0.0)
    clipped_values = old_values + (values - old_values).clamp(-clip, clip)
    clipped_error = (clipped_values - targets).masked_fill(~wanted, 0.0)
    return _sum_heads(
        0.5 * torch.maximum(error.square(), clipped_error.square()),
        error.detach().abs().masked_fill(~wanted, torch.nan),
    )


def success_value(critic_values: Tensor, critic_targets: Tensor) -> TokenLoss:
    """Compute the cross-entropy of a predicted probability of success with the outcome.

        L = −y log p − (1 − y) log(1 − p)

    Probabilities are clamped to [1e-6, 1 − 1e-6].

    Args:
        critic_values: [T] or [T, heads] probabilities, with gradient.
        critic_targets: The same shape, in [0, 1]; NaN for values without a target.

    Source: Bai et al. 2024 (DigiRL), arXiv:2406.11896, §4.2; Qi et al. 2024 (WebRL), arXiv:2411.02337.
    """
    wanted = ~critic_targets.isnan()
    y = critic_targets.detach().nan_to_num(0.0)
    p = critic_values.clamp(1e-6, 1 - 1e-6)
    loss = -(y * p.log() + (1 - y) * (1 - p).log()).masked_fill(~wanted, 0.0)
    return _sum_heads(loss, (critic_values.detach() - y).abs().masked_fill(~wanted, torch.nan))


def value_slope(critic_values: Tensor, value_slopes: Tensor) -> TokenLoss:
    """Compute the first-order form of a penalty on values from its derivatives before the update.

        L = Σ_heads s V

    Args:
        critic_values: [T, heads] with gradient.
        value_slopes: [T, heads] s; see `simulation_penalty`.

    Source: Niu et al. 2022, arXiv:2206.13464, eq. 7, to first order.
    """
    return TokenLoss((value_slopes * critic_values).sum(1), {})


def _sum_heads(loss: Tensor, error: Tensor) -> TokenLoss:
    if loss.ndim == 2:
        loss, error = loss.sum(1), error.nanmean(1)
    return TokenLoss(loss, {"value/loss": error})
