"""Attention of new tokens over KV slots, registered with Transformers' attention interface.

The function is registered under a name that the engine's copy of a model selects, so the code of the model is
unchanged. Queries that share keys (grouped-query attention) are stacked, so keys are never repeated.

On a CPU, attention of a single token is a matrix-vector product. Plain matrix multiplication computes it twice as fast
as the fused kernel (64 slots of 384 keys: 0.6 ms instead of 1.4). Several tokens use the fused kernel, and so does
every case on a GPU: one kernel is launched per layer instead of five.

Note:
    The two paths sum in different orders, so the last bits depend on the path. The path may depend only on whether the
    token is a prompt or a sampled token, never on the other sequences of the batch; see `forward.py`.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from whetstone.inference.kv_cache import KVCache
from whetstone.policies import chunk_size, softmax_with_sinks

NAME = "whetstone_rows"


class _Aimed(threading.local):
    """Cache and attention biases of the current forward pass, separate for each thread."""

    cache: KVCache
    biases: dict[tuple[int | None, int | None], Tensor]


_aimed = _Aimed()


def set_attention_context(cache: KVCache) -> None:
    """Set the KV cache that `slot_attention` reads in the next forward pass of this thread.

    `SlotForward` calls the function before every forward pass, after `KVCache.select_slots`. Biases of the previous
    pass are discarded.
    """
    _aimed.cache, _aimed.biases = cache, {}


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention of new tokens over the slots that the cache has selected.

    Transformers calls the function in every attention layer. The cache is the one of `set_attention_context`; its mask
    replaces `attention_mask`.

    Args:
        module: Attention layer.
        query: [B, H, L, D] queries of the new tokens.
        key: [R, K, reach, D] keys of the R selected slots, or of the contiguous span that contains them; H is a
            multiple of K.
        value: [R, K, reach, D'] values, as `key`.
        attention_mask: Ignored.
        scaling: Factor of the scores; defaults to D^-0.5.
        sliding_window: Number of visible positions up to the query; None: all.
        softcap: Bound of the scores, applied by tanh; None: unbounded.
        s_aux: [H] attention sinks: score of an empty position.
        position_bias: Must be None.
        others: Further arguments of Transformers, ignored.

    Returns:
        [B, L, H, D'] outputs, and None instead of attention weights.

    Raises:
        NotImplementedError: If `position_bias` is given; slots do not store the bias of a position.
    """
    if position_bias is not None:
        raise NotImplementedError("KV slots do not support a position bias")
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    stacked = query.reshape(batch, key.shape[1], groups * length, width)
    spread = _aimed.cache.spread
    if spread is not None:
        everyone = stacked.new_zeros(len(key), *stacked.shape[1:])
        everyone[spread] = stacked
        stacked = everyone
    window, chunk = sliding_window, chunk_size(module)
    bias = _bias(_aimed.cache, groups, window, chunk, query.dtype, len(key))
    if s_aux is not None:
        scores = (stacked * (width**-0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
        sinks = s_aux.view(key.shape[1], groups).repeat_interleave(length, 1).unsqueeze(-1)
        mixed = softmax_with_sinks(scores + bias, sinks) @ value
    elif softcap is None and (length > 1 or query.device.type != "cpu"):
        mixed = scaled_dot_product_attention(stacked, key, value, attn_mask=bias, scale=scaling)
    else:
        scores = (stacked * (width**-0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        mixed = scores.add_(bias).softmax(-1) @ value
    if spread is not None:
        mixed = mixed[spread]
    return mixed.reshape(batch, heads, length, value.shape[-1]).transpose(1, 2), None


def _bias(cache: KVCache, groups: int, window: int | None, chunk: int | None, dtype: torch.dtype, rows: int) -> Tensor:
    """Return the attention bias [rows, 1, groups · L or 1, reach] of the forward pass.

    The bias is 0 for visible keys and −inf elsewhere. It is computed by the first layer and reused by the others that
    have the same window and chunk size.
    """
    known = _aimed.biases.get((window, chunk))
    if known is not None:
        return known
    keys = torch.arange(cache.reach, device=cache.places.device)
    places = cache.places.unsqueeze(-1)
    seen = keys <= places
    if window is not None:
        seen &= keys > places - window
    if chunk is not None:
        seen &= keys // chunk == places // chunk
    bias = torch.zeros(seen.shape, dtype=dtype, device=keys.device).masked_fill_(~seen, -torch.inf).unsqueeze(1)
    if seen.shape[1] > 1:  # one for each of the stacked queries; a single one serves all groups
        bias = bias.repeat(1, 1, groups, 1)
    if cache.spread is not None:
        everyone = bias.new_zeros(rows, *bias.shape[1:])
        everyone[cache.spread] = bias
        bias = everyone
    _aimed.biases[window, chunk] = bias
    return bias


AttentionInterface.register(NAME, slot_attention)
