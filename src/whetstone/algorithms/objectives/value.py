"""How does a critic learn? By the squared distance to the return it should have foretold."""

from __future__ import annotations

from torch import Tensor

from whetstone.algorithms.objectives.clipped import TokenLoss


def squared_value(values: Tensor, targets: Tensor) -> TokenLoss:
    """Half the squared error of a critic.

        L = ½ (V − target)²

    Args:
        values: [T] with gradient.
        targets: [T] without; where one is NaN nothing is predicted, and the loss is 0.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 9, without its clipping.
    """
    wanted = ~targets.isnan()
    error = (values - targets.detach()).masked_fill(~wanted, 0.0)
    return TokenLoss(0.5 * error.square(), {"value/error": error.detach().abs()})
