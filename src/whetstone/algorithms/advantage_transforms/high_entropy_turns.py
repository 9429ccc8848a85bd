"""Which turns are worth learning from? Those at which the policy was unsure."""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerTurn
from whetstone.ranges import PositiveShare


def high_entropy_turns(advantages: PerTurn, turn_entropies: PerTurn, *, fraction: PositiveShare = 0.8) -> PerTurn:
    """Advantages of the turns with the highest mean token entropy; 0 at the others (DART).

    The share of the batch's turns that stays is rounded to the next whole turn; 1 leaves all as they are.

    Args:
        advantages: [M]
        turn_entropies: [M] mean over a turn's tokens; NaN counts as the lowest.
        fraction: Fraction of turns that are trained, those with the highest entropy; in (0, 1].

    Raises:
        ValueError: A share that is none.

    Source: DART 2025, arXiv:2509.23866
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction:g}")
    count = len(advantages)
    stays = round(fraction * count)
    order = torch.argsort(turn_entropies.double().nan_to_num(-1.0), descending=True, stable=True)
    kept = torch.zeros(count, dtype=torch.float64)
    kept[order[:stays]] = 1.0
    return advantages.double() * kept
