"""What did each step add to what was expected? Generalised advantage estimation over turns or tokens.

Easy to get wrong: a step is what the critic predicts at, a turn or an action token. With observations in between
the next step is the next *action*; and targets are taken before advantages are normalised.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,  # [K] of each step, the outcome in the last
    values: Tensor,  # [K] of the state in front of each step
    *,
    discount: float = 0.99,
    trace: float = 0.95,
    next_value: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of one trajectory.

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1},   target_t = A_t + V_t

    Args:
        discount: γ, a step, in [0, 1].
        trace: λ, in [0, 1]; 1 is reward-to-go minus value, 0 one step ahead.
        next_value: Of the state behind the last step: 0 where the episode was over, the critic's where it was cut.

    Returns:
        ([K] advantages, [K] targets), float64.

    Raises:
        ValueError: The tensors differ in shape, or a factor is out of range.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16; over turns: arXiv:2508.04280.
    """
    if rewards.shape != values.shape:
        raise ValueError(f"one value per reward: got {[*rewards.shape]} and {[*values.shape]}")
    if not (0 <= discount <= 1 and 0 <= trace <= 1):
        raise ValueError(f"discount and trace are in [0, 1]: got {discount:g}, {trace:g}")
    rewards, values = rewards.detach().double(), values.detach().double()
    advantages = torch.zeros_like(values)
    behind, carried = next_value, 0.0
    for step in reversed(range(len(values))):
        value = values[step].item()
        carried = rewards[step].item() + discount * behind - value + discount * trace * carried
        advantages[step], behind = carried, value
    return advantages, advantages + values
