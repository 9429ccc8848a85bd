"""Loss aggregation: the weight of each token's loss in an update.

Counts are over the whole update, all micro-batches and learners, so its division into micro-batches changes nothing.

Note: The mean of the micro-batches' means is a different number. A correction that rejects a token changes
only the numerator: dividing by the remaining tokens would increase their weight.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_sum", "sequence_mean", "constant"]


def token_weights(
    lengths: Tensor,  # [N] action tokens of each sequence of the update
    mode: Aggregation = "token_mean",
    *,
    constant: float | None = None,
) -> Tensor:  # [N]
    """Compute the weight of each token of a sequence, so that the loss of the update is Σ weight · L.

        token_mean     1 / Σ n            every token the same (DAPO)
        sequence_sum   1 / N              every token the same, however many there are
        sequence_mean  1 / (N n_i)        every sequence the same: a long wrong answer is punished less per token
        constant       1 / (N C)          Dr. GRPO; C is fixed for a run, never the width of a batch

    Sequences without an action token count in none of them; without any, all weights are 0.

    Args:
        constant: Budget C of a response in tokens, for the mode `constant`.

    Raises:
        ValueError: If the mode is `constant` and the constant is not above 0.

    Source: arXiv:2503.14476, §3.3; arXiv:2503.20783, §3.1; verl's `agg_loss`, whose constant mode does not divide by N.
    """
    lengths = lengths.double()
    alive = (lengths > 0).double()
    sequences = alive.sum().clamp(min=1)
    if mode == "token_mean":
        return alive / lengths.sum().clamp(min=1)
    if mode == "sequence_sum":
        return alive / sequences
    if mode == "sequence_mean":
        return alive / (sequences * lengths.clamp(min=1))
    if constant is None or constant <= 0:
        raise ValueError(f"aggregation: constant needs a number of tokens above 0, got {constant}")
    return alive / (sequences * constant)


def aggregate_loss(
    loss: Tensor,  # [T]
    sequence: Tensor,  # [T] index of the sequence of each token
    mode: Aggregation = "token_mean",
    *,
    constant: float | None = None,
) -> Tensor:  # []
    """Compute the loss of an update that consists of these tokens; sequences without tokens have no effect.

    Args:
        constant: Budget C of a response in tokens, for the mode `constant`.

    Source: as `token_weights`: arXiv:2503.14476, arXiv:2503.20783.
    """
    weights = token_weights(torch.bincount(sequence), mode, constant=constant)
    return (loss * weights.to(loss)[sequence]).sum()
