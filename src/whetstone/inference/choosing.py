"""In which way is a model sampled? Over shared rows of keys where that gives what the model itself gives, else slower.

Rows share beginnings between sequences and compute many at once, and they need a model whose layers keep keys and
values and attend through Transformers' interface. What a model is, is not taken from its name: the way is tried
against the model's plain pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable

import torch

from whetstone.inference.forward import RowForward
from whetstone.inference.own_cache import Feeding, OwnForward, feeding_of
from whetstone.policies import FAULTS, PlainPass, architecture_of, kind_of, masks_are_known, plain_pass

Forward = RowForward | OwnForward

_SLOWER = {
    "pieces": "each sequence with the model's own cache",
    "single": "each sequence with the model's own cache, which goes on one token at a time",
    "whole": "and each token computed again from the start of its sequence: the model's own cache gives other numbers",
}


_found: dict[Hashable, Feeding | None] = {}
"""How models are sampled that were tried in this process; None: over rows."""


def choose_forward(model: torch.nn.Module, *, rows: int, context_length: int) -> Forward:
    """The quickest way to sample a model that gives what it gives itself. A slower one than rows is said, once.

    Args:
        rows: How many sequences are to be kept.
        context_length: Places the model knows.

    Raises:
        PolicyError: The model is not causal, or cannot be computed from tokens alone.
    """
    known = architecture_of(model)
    if known not in _found:
        _found[known] = _tried(model)
    feeding = _found[known]
    if feeding is None:
        return RowForward(model, rows=rows, context_length=context_length)
    return OwnForward(model, feeding=feeding)


@torch.inference_mode()
def _tried(model: torch.nn.Module) -> Feeding | None:
    """How a model's sequences go on that cannot be sampled over rows; None where it can."""
    plain = plain_pass(model)
    try:
        apart = rows_apart(RowForward(model, rows=1, context_length=len(plain.sequences[0])), plain)
        if apart > 1:
            why = f"rows of keys give other numbers than its own pass ({apart:.2g} times what is allowed)"
        elif not masks_are_known(model):
            why = "it masks attention in a way rows do not know"
        else:
            return None
    except FAULTS as error:
        why = f"rows of keys do not suit it ({type(error).__name__})"
    feeding = feeding_of(model, plain)
    warnings.warn(
        f"{kind_of(model)}: {why}, so nothing is shared and it is sampled slower: {_SLOWER[feeding.by]}", stacklevel=2
    )
    return feeding


def rows_apart(forward: RowForward, plain: PlainPass) -> float:
    """How far rows are from the plain pass: a prompt, a piece behind it, drawn tokens, and a fork of the beginning."""
    first, second = plain.sequences
    stem, length = plain.stem, len(first)
    with forward.tried(rows=2, length=length):
        worst = plain.apart(0, 0, forward.logits([0], [0], [first[:stem]], everywhere=True)[0, :stem])
        forward.cache.copy(0, 1, stem - 2)
        starts, behind = [stem, stem - 2], [first[stem : stem + 3], second[stem - 2 : -1]]
        logits = forward.logits([0, 1], starts, behind, everywhere=True)
        for row in (0, 1):
            worst = max(worst, plain.apart(row, starts[row], logits[row, : len(behind[row])]))
        ends = [stem + 3, length - 1]
        drawn = forward.logits([0, 1], ends, [[first[ends[0]]], [second[ends[1]]]], drawn=True)
        return max(worst, *(plain.apart(row, ends[row], drawn[row : row + 1]) for row in (0, 1)))
