"""Choice of the forward pass of the local engine: KV slots, or the model's own cache.

The logits of both are compared with those of the model's forward pass, once per architecture in a process.
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
"""Forward pass of `LocalEngine`."""

_SLOWER = {
    "pieces": "each sequence with the model's own cache",
    "single": "each sequence with the model's own cache, one token at a time",
    "whole": "and each token is recomputed from the start of its sequence: the model's own cache gives other logits",
}
"""Description of each slower decode mode, for the warning."""


_DESCRIBED_TOKENS = 256
"""Context length of the forward passes that are compared to describe one."""
_decode_modes: dict[Hashable, DecodeMode | None] = {}
"""Selected decode mode of each model architecture that was tried in this process; None: KV slots."""


def choose_forward(model: torch.nn.Module, *, rows: int, context_length: int) -> Forward:
    """Return the fastest forward pass whose logits agree with the model's own.

    KV slots are preferred: they share prefixes between sequences and compute many at the same time, but require
    attention layers with keys and values. The alternative is the model's own cache, one sequence at a time, which a
    warning reports once per architecture. The choice does not depend on the model's name.

    Args:
        model: Transformers causal language model.
        rows: Number of KV slots.
        context_length: Maximum number of tokens per sequence.

    Raises:
        PolicyError: If the model is not causal, needs further inputs, or is not reproducible.
    """
    known = architecture_key(model)
    if known not in _decode_modes:
        _decode_modes[known] = _try_slots(model)
    feeding = _decode_modes[known]
    if feeding is None:
        return SlotForward(model, rows=rows, context_length=context_length)
    return HFCacheForward(model, feeding=feeding)


@torch.inference_mode()
def describe_forward(model: torch.nn.Module) -> tuple[bool, str]:
    """Return (whether `LocalEngine` samples a model by its fastest forward pass, description), for `whetstone doctor`.

    Args:
        model: Transformers causal language model.

    Raises:
        PolicyError: As for `choose_forward`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the description contains them
        forward = choose_forward(model, rows=1, context_length=_DESCRIBED_TOKENS)
        if isinstance(forward, SlotForward):
            return forward.describe()
    return False, f"slower, {_SLOWER[forward.feeding.by]}"


@torch.inference_mode()
def _try_slots(model: torch.nn.Module) -> DecodeMode | None:
    """Return the decode mode of a model that cannot be sampled with KV slots, or None if it can."""
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
    """Return the maximum error of KV slots relative to the tolerance of the reference `plain`.

    A prompt, a continuation, a copied prefix and decoded tokens of two sequences are compared. At most 1 is an
    agreement.
    """
    first, second = plain.sequences
    stem, length = plain.stem, len(first)
    with forward.temporary_slots(rows=2, length=length):
        worst = plain.relative_error(0, 0, forward.compute_logits([0], [0], [first[:stem]], everywhere=True)[0, :stem])
        forward.cache.copy(0, 1, stem - 2)
        starts, continuations = [stem, stem - 2], [first[stem : stem + 3], second[stem - 2 : -1]]
        logits = forward.compute_logits([0, 1], starts, continuations, everywhere=True)
        for row in (0, 1):
            worst = max(worst, plain.relative_error(row, starts[row], logits[row, : len(continuations[row])]))
        ends = [stem + 3, length - 1]
        drawn = forward.compute_logits([0, 1], ends, [[first[ends[0]]], [second[ends[1]]]], is_decode=True)
        return max(worst, *(plain.relative_error(row, ends[row], drawn[row : row + 1]) for row in (0, 1)))
