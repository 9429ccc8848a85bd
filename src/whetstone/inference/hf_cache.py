"""Decoding for models with a non-standard cache (state-space models): one Hugging Face cache per sequence.

State-space models, linear attention and convolutions carry a state from token to token. The state represents all tokens
so far, so a sequence can only be extended. It cannot be truncated, and it cannot share a prefix with another sequence.
The cache is whatever the model's forward pass returns, so this module does not depend on model types.

Note:
    Some models continue from their cache with a single token only, and some not at all: see `select_decode_mode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from whetstone.errors import PolicyError
from whetstone.inference.forward import assign_parameters
from whetstone.policies import FAULTS, ReferenceForward, forward_accepts, model_type, release_memory, with_attention


@dataclass(frozen=True, slots=True)
class DecodeMode:
    """How a model continues a sequence from its own cache; chosen by `select_decode_mode`."""

    by: Literal["pieces", "single", "whole"]
    """Tokens per forward pass. `pieces`: any number. `single`: one. `whole`: the sequence is recomputed from its
    start."""
    places: bool = False
    """Whether the model receives position ids. Some models do not count the tokens in their cache."""


_DECODE_MODES = (
    DecodeMode("pieces", True),
    DecodeMode("pieces"),
    DecodeMode("single", True),
    DecodeMode("single"),
    DecodeMode("whole"),
)
"""Decode modes to try, fastest first."""
_KEPT = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""Names that models give their cache in outputs and inputs."""


@dataclass(slots=True)
class _Sequence:
    """Token ids of one sequence, and the cache that the model returned after them."""

    ids: list[int] = field(default_factory=list)
    cache: dict[str, Any] = field(default_factory=dict)


class HFCaches:
    """Token ids and Hugging Face cache of each sequence, by slot number."""

    def __init__(self) -> None:
        self.sequences: dict[int, _Sequence] = {}

    def wipe_slot(self, row: int) -> None:
        """Drop the token ids and the cache of a sequence, if there are any."""
        self.sequences.pop(row, None)


class HFCacheForward:
    """Forward pass with the model's own cache, one sequence at a time.

    Has the interface of `SlotForward`, for models without a KV cache. Created by `choose_forward`.

    Args:
        model: Transformers causal language model. Its parameters are shared; its mode and attention settings are those
            of a copy.
        feeding: Decode mode of the model, from `select_decode_mode`.
    """

    def __init__(self, model: torch.nn.Module, *, feeding: DecodeMode) -> None:
        anything: Any = model
        self.model: Any = with_attention(model, attention=anything.config._attn_implementation)
        self.device = next(model.parameters()).device
        self.feeding = feeding
        self.cache = HFCaches()
        self._options: dict[str, Any] = (
            {"use_cache": feeding.by != "whole"} if forward_accepts(model, "use_cache") else {}
        )
        self._keeps_logits = forward_accepts(model, "logits_to_keep")

    def compute_logits(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        new: Sequence[Sequence[int]],
        *,
        is_decode: bool = False,
        prompts: Sequence[int] | None = None,
        everywhere: bool = False,
    ) -> Tensor:
        """Feed new tokens to each sequence and compute the logits that follow them.

        Arguments and result are those of `SlotForward.compute_logits`. A sequence is extended at its end, or restarted
        if its start is 0; `is_decode` and `prompts` have no effect.
        """
        outputs = []
        for row, start, tokens in zip(rows, starts, new, strict=True):
            if start == 0:
                self.cache.wipe_slot(row)
            sequence = self.cache.sequences.setdefault(row, _Sequence())
            assert len(sequence.ids) == start  # sequences are only extended: see `KVSlots`
            pieces = [self._feed(sequence, piece, everywhere) for piece in self._pieces(start, tokens)]
            logits = torch.cat(pieces) if everywhere else pieces[-1]
            outputs.append(logits)
        if not everywhere:
            return torch.cat(outputs)
        return torch.nn.utils.rnn.pad_sequence(outputs, batch_first=True)

    def release(self) -> None:
        """Drop the token ids and caches of all sequences, and free device memory."""
        self.cache.sequences.clear()
        release_memory(self.device)

    def load(self, weights: Any) -> None:
        """Copy parameters into the model by name; see `assign_parameters`."""
        assign_parameters(self.model, weights)

    def _pieces(self, start: int, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        if self.feeding.by == "single" and start > 0:
            yield from ([token] for token in tokens)
        else:
            yield tokens

    def _feed(self, sequence: _Sequence, tokens: Sequence[int], everywhere: bool) -> Tensor:
        """Feed tokens to one sequence and return [1 or len(tokens), V] logits.

        The logits are those after the last token, or after each token if `everywhere`.
        """
        recomputes = self.feeding.by == "whole"
        fed = torch.tensor([[*sequence.ids, *tokens] if recomputes else tokens], device=self.device)
        options = self._options | ({"logits_to_keep": len(tokens) if everywhere else 1} if self._keeps_logits else {})
        if self.feeding.places:
            start = len(sequence.ids)
            options["position_ids"] = torch.arange(start, start + len(tokens), device=self.device).unsqueeze(0)
        output = self.model(input_ids=fed, **options, **sequence.cache)
        if not recomputes:
            sequence.cache = {name: output[name] for name in _KEPT if name in output and output[name] is not None}
        sequence.ids += tokens
        logits: Tensor = output.logits[0, -len(tokens) if everywhere else -1 :]
        return logits


@torch.no_grad()
def select_decode_mode(model: torch.nn.Module, plain: ReferenceForward) -> DecodeMode:
    """Return the fastest decode mode whose logits agree with the reference forward pass.

    Args:
        model: Causal language model.
        plain: Reference logits of two sequences of the model.

    Raises:
        PolicyError: If no mode agrees: the reference forward pass itself is not repeatable.
    """
    for feeding in _DECODE_MODES:
        if feeding.places and not forward_accepts(model, "position_ids"):
            continue
        try:
            if _relative_error(HFCacheForward(model, feeding=feeding), plain) <= 1:
                return feeding
        except FAULTS:
            continue
    raise PolicyError(
        f"models of type {model_type(model)} are not reproducible: their logits differ each time; "
        "use a model whose forward pass has no randomness"
    )


def _relative_error(forward: HFCacheForward, plain: ReferenceForward) -> float:
    """Return the maximum error of a forward pass relative to the tolerance of the reference.

    Two interleaved sequences are fed in pieces; one of them starts with a single token. A value of at most 1 is an
    agreement.
    """
    first, second = plain.sequences
    stem, length = plain.stem, len(first)
    worst = 0.0
    for row, start, end in ((0, 0, stem), (1, 0, 1), (0, stem, stem + 3), (1, 1, stem), (1, stem, length - 2)):
        logits = forward.compute_logits([row], [start], [plain.sequences[row][start:end]], everywhere=True)[0]
        worst = max(worst, plain.relative_error(row, start, logits))
    ends = [stem + 3, length - 2]
    for step in range(2):
        at = [end + step for end in ends]
        logits = forward.compute_logits([0, 1], at, [[first[at[0]]], [second[at[1]]]], is_decode=True)
        worst = max(worst, *(plain.relative_error(row, at[row], logits[row : row + 1]) for row in (0, 1)))
    return worst
