"""Selects replayed turns whose token probability under the current policy is in a band (WebRL)."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken, PerTrajectory, PerTurn
from whetstone.bounded_types import Share


def probability_band(
    advantages: PerTurn,
    old_logprobs: PerToken,
    turn: PerToken,
    trajectory: PerTurn,
    replayed: PerTrajectory,
    *,
    low: Share = 0.5,
    high: Share = 0.95,
) -> PerTurn:
    """Keep advantages of replayed turns with a mean token probability in (low, high]; 0 outside (WebRL).

    p = exp(mean log-prob) under the current policy. Fresh turns are unchanged.

    Args:
        advantages: [M] advantage of each turn.
        old_logprobs: [K] log-probs under the policy before the update.
        turn: [K] index of the turn of each token.
        trajectory: [M] index of the trajectory of each turn.
        replayed: [N] nonzero for a replayed trajectory.
        low: Exclusive lower bound of the mean token probability p.
        high: Inclusive upper bound of the mean token probability p.

    Source: WebRL 2024, arXiv:2411.02337, its code (`process_data.py`).
    """
    zeros = torch.zeros(len(advantages), dtype=torch.float64)
    sums = zeros.index_add(0, turn, old_logprobs.double())
    counts = zeros.index_add(0, turn, torch.ones_like(old_logprobs.double())).clamp(min=1)
    likely = (sums / counts).exp()
    stays = (replayed[trajectory] == 0) | ((likely > low) & (likely <= high))
    return advantages.double() * stays.double()
