"""Selection of the forward pass that samples a model: batched KV slots if results agree with the model, else slower.

KV slots share prefixes between sequences and compute many at the same time. They require layers that keep keys and
values and attend through Transformers' interface. The selection does not depend on the model's name: each way is
compared with the reference forward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable

import torch

from whetstone.inference.forward import SlotForward
from whetstone.inference.hf_cache import DecodeMode, HFCacheForward, select_decode_mode
from whetstone.policies import (
    FAULTS,
    ReferenceForward,
    architecture_key,
    masks_are_known,
    model_type,
    run_reference_forward,
)

Forward = SlotForward | HFCacheForward

_SLOWER = {
    "pieces": "each sequence with the model's own cache",
    "single": "each sequence with the model's own cache, one token at a time",
    "whole": "and each token is recomputed from the start of its sequence: the model's own cache gives other logits",
}


_decode_modes: dict[Hashable, DecodeMode | None] = {}
"""Selected decode mode of each model architecture that was tried in this process; None: KV slots."""


def choose_forward(model: torch.nn.Module, *, rows: int, context_length: int) -> Forward:
    """Return the fastest forward pass whose results agree with the model.

    Warn once if it is not KV slots.

    Args:
        model: Causal language model.
        rows: Number of sequences to store.
        context_length: Maximum sequence length of the model.

    Raises:
        PolicyError: If the model is not causal, or needs more inputs than tokens.
    """
    known = architecture_key(model)
    if known not in _decode_modes:
        _decode_modes[known] = _try_slots(model)
    feeding = _decode_modes[known]
    if feeding is None:
        return SlotForward(model, rows=rows, context_length=context_length)
    return HFCacheForward(model, feeding=feeding)


@torch.inference_mode()
def _try_slots(model: torch.nn.Module) -> DecodeMode | None:
    """Return the decode mode of a model that cannot be sampled over KV slots; None if it can."""
    plain = run_reference_forward(model)
    try:
        error_ratio = slots_error(SlotForward(model, rows=1, context_length=len(plain.sequences[0])), plain)
        if error_ratio > 1:
            why = f"KV slots give other logits than its own forward pass ({error_ratio:.2g} times the tolerance)"
        elif not masks_are_known(model):
            why = "its attention mask is not supported by KV slots"
        else:
            return None
    except FAULTS as error:
        why = f"KV slots do not support it ({type(error).__name__})"
    feeding = select_decode_mode(model, plain)
    warnings.warn(
        f"{model_type(model)}: {why}, so prefixes are not shared and it is sampled slower: {_SLOWER[feeding.by]}",
        stacklevel=2,
    )
    return feeding


def slots_error(forward: SlotForward, plain: ReferenceForward) -> float:
    """Return the error of KV slots relative to the reference: prompt, continuation, decoded tokens and a fork."""
    first, second = plain.sequences
    stem, length = plain.stem, len(first)
    with forward.tried(rows=2, length=length):
        worst = plain.relative_error(0, 0, forward.logits([0], [0], [first[:stem]], everywhere=True)[0, :stem])
        forward.cache.copy(0, 1, stem - 2)
        starts, continuations = [stem, stem - 2], [first[stem : stem + 3], second[stem - 2 : -1]]
        logits = forward.logits([0, 1], starts, continuations, everywhere=True)
        for row in (0, 1):
            worst = max(worst, plain.relative_error(row, starts[row], logits[row, : len(continuations[row])]))
        ends = [stem + 3, length - 1]
        drawn = forward.logits([0, 1], ends, [[first[ends[0]]], [second[ends[1]]]], is_decode=True)
        return max(worst, *(plain.relative_error(row, ends[row], drawn[row : row + 1]) for row in (0, 1)))
