"""Attention masks of a model: sliding windows, chunks and attention sinks, for engine and learner.

Windows are arguments of Transformers' attention interface. Chunks are not; they are in the configuration. A model can
also build a custom mask. Each mask is therefore evaluated at positions far apart, because short sequences do not reveal
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from whetstone.policies.shared_weights import with_attention

_NAME = "whetstone_masks"
_KNOWN = {"full_attention", "sliding_attention", "chunked_attention"}
_FAR = 2**20
"""Position in tokens beyond every context length."""


def chunk_size(module: torch.nn.Module) -> int | None:
    """Return the chunk size of an attention layer in tokens; None if it has no chunks."""
    config: Any = getattr(module, "config", None)
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is None:
        return None
    kinds, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds is not None and (layer is None or kinds[layer] != "chunked_attention"):
        return None
    return int(chunk)


def softmax_with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Compute attention weights if part of the attention goes to a sink, an empty position.

    Args:
        scores: [..., heads, queries, keys] attention scores.
        sinks: [..., heads, queries or 1, 1] score of the sink.

    Returns:
        [..., heads, queries, keys] weights, whose sum over keys is below 1.
    """
    sinks = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


@dataclass(frozen=True, slots=True)
class _RecordedMask:
    """Mask of a layer, with the window and chunk size that the layer declares."""

    rule: Callable[..., Tensor]
    """Whether a query's position attends to a key's, for tensors of (sequence, head, query, key) positions."""
    window: int | None
    chunk: int | None

    def is_as_declared(self, end: int) -> bool:
        """Return whether the mask is as declared, for the last position of a sequence and one in its middle."""
        return all(self._is_as_declared_at(place) for place in {end - 1, end // 2})

    def _is_as_declared_at(self, place: int) -> bool:
        chunk, window = self.chunk or place + 1, self.window or place + 1
        begin = place // chunk * chunk
        edges = {place + 1, 0, begin, begin - 1, place - window, place - window + 1}
        edges |= {place - 2**k for k in range(place.bit_length())}
        keys = torch.tensor([key for key in sorted(edges) if key >= 0])
        expected = (keys <= place) & (keys > place - window) & (keys >= begin)
        zero = torch.tensor(0)
        visible = self.rule(zero, zero, torch.full_like(keys, place), keys)
        return torch.equal(visible.cpu().expand_as(expected), expected)


class _Recorder(threading.local):
    masks: list[_RecordedMask]


_recorder = _Recorder()


@torch.no_grad()
def masks_are_known(model: torch.nn.Module) -> bool:
    """Return whether every attention mask of a model is causal, within the declared window or chunk.

    The mask functions are evaluated at positions beyond every context length, without a forward pass of that length.
    Masks that do not use Transformers' functions are not detected.
    """
    anything: Any = model
    kinds = set(getattr(anything.config.get_text_config(), "layer_types", None) or ())
    if not kinds <= _KNOWN:
        return False
    view: Any = with_attention(model, attention=_NAME)
    _recorder.masks = []
    view(input_ids=torch.zeros(1, 4, dtype=torch.long, device=next(model.parameters()).device), use_cache=False)
    return all(mask.is_as_declared(_FAR) for mask in _recorder.masks)


def _mask(*args: Any, mask_function: Callable[..., Tensor], **others: Any) -> Tensor:
    """Build Transformers' attention mask, with the mask function attached as `rule`."""
    mask: Any = sdpa_mask(*args, mask_function=mask_function, **{**others, "allow_is_causal_skip": False})
    mask.rule = mask_function
    return mask  # type: ignore[no-any-return]


def _record_mask(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function that only records the mask of its layer, and returns zeros."""
    rule = getattr(attention_mask, "rule", None)
    if rule is not None:
        _recorder.masks.append(_RecordedMask(rule, sliding_window, chunk_size(module)))
    batch, heads, length, _ = query.shape
    return query.new_zeros(batch, length, heads, value.shape[-1]), None


AttentionInterface.register(_NAME, _record_mask)
AttentionMaskInterface.register(_NAME, _mask)
