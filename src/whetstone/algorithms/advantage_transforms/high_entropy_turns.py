"""Selects the turns with the highest mean token entropy (DART)."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerTurn
from whetstone.bounded_types import PositiveShare


def high_entropy_turns(advantages: PerTurn, turn_entropies: PerTurn, *, fraction: PositiveShare = 0.8) -> PerTurn:
    """Set the advantages of all but the turns with the highest mean token entropy to 0 (DART).

    The number of turns that are kept is rounded to the nearest integer; with a fraction of 1 nothing changes.

    Args:
        advantages: [M] advantage of each turn.
        turn_entropies: [M] mean over a turn's tokens; NaN counts as the lowest.
        fraction: Fraction of turns that are trained, those with the highest entropy; in (0, 1].

    Raises:
        ValueError: If `fraction` is not in (0, 1].

    Source: DART 2025, arXiv:2509.23866
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction:g}")
    count = len(advantages)
    stays = round(fraction * count)
    order = torch.argsort(turn_entropies.double().nan_to_num(-1.0), descending=True, stable=True)
    weights = torch.zeros(count, dtype=torch.float64)
    weights[order[:stays]] = 1.0
    return advantages.double() * weights
