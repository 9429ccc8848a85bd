"""How does a new token attend to its row? Through Transformers' attention interface, over the rows as they lie.

The function is registered under a name and chosen by the engine's view of a model, so the model's own code
is unchanged. Queries that share keys (grouped heads) are stacked, so keys are never repeated.

Easy to get wrong: a matrix product of one, two or three rows is summed in another order than one of four or
more, and a token's logits would then depend, in their last bit, on how its neighbours were computed. So four
queries or a multiple of four are always asked, and doubles dropped.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from whetstone.inference.cache import RowCache

NAME = "whetstone_rows"
_QUERIES = 4


class _Aimed(threading.local):
    cache: RowCache
    biases: dict[tuple[int, int | None], Tensor]


_aimed = _Aimed()


def aim_attention(cache: RowCache) -> None:
    """The next forward pass of this thread reads `cache`, which is aimed already."""
    _aimed.cache, _aimed.biases = cache, {}


def attend_to_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of new tokens over the rows the cache is aimed at.

    Args:
        query: [B, H, L, D]; L is 1 or a multiple of 4.
        key: [R, K, reach, D], the aimed span or the chosen rows; H is a multiple of K.
        value: Like `key`.
        attention_mask: Not read; the cache knows who may look where.

    Returns:
        [B, L, H, D]

    Raises:
        NotImplementedError: The model asks for attention sinks.
    """
    if others.get("s_aux") is not None:
        raise NotImplementedError("the local engine has no attention sinks")
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    repeats = 1 if groups * length % _QUERIES == 0 else _QUERIES
    stacked = query.reshape(batch, key.shape[1], groups * length, width)
    if repeats > 1:
        stacked = stacked.repeat_interleave(repeats, dim=2)
    spread = _aimed.cache.spread
    if spread is not None:
        everyone = stacked.new_zeros(len(key), *stacked.shape[1:])
        everyone[spread] = stacked
        stacked = everyone
    bias = _bias(_aimed.cache, groups, length, repeats, sliding_window, query.dtype, len(key))
    if softcap is None:
        mixed = scaled_dot_product_attention(stacked, key, value, attn_mask=bias, scale=scaling)
    else:
        scores = stacked @ key.transpose(-1, -2) * (width**-0.5 if scaling is None else scaling)
        mixed = (torch.tanh(scores / softcap) * softcap + bias).softmax(-1) @ value
    if spread is not None:
        mixed = mixed[spread]
    return mixed[:, :, ::repeats].reshape(batch, heads, length, width).transpose(1, 2), None


def _bias(
    cache: RowCache, groups: int, length: int, repeats: int, window: int | None, dtype: torch.dtype, rows: int
) -> Tensor:
    """[rows, 1, groups · length · repeats, reach] 0 where a query may look, −inf elsewhere; the same for all layers."""
    known = _aimed.biases.get((groups, window))
    if known is not None:
        return known
    keys = torch.arange(cache.reach, device=cache.places.device)
    places = cache.places.unsqueeze(-1)
    seen = keys <= places
    if window is not None:
        seen &= keys > places - window
    bias = torch.zeros(seen.shape, dtype=dtype, device=keys.device).masked_fill(~seen, -torch.inf)
    bias = bias.unsqueeze(1).expand(-1, groups, -1, -1).reshape(len(seen), 1, groups * length, cache.reach)
    if repeats > 1:
        bias = bias.repeat_interleave(repeats, dim=2)
    if cache.spread is not None:
        everyone = bias.new_zeros(rows, *bias.shape[1:])
        everyone[cache.spread] = bias
        bias = everyone
    _aimed.biases[groups, window] = bias
    return bias


AttentionInterface.register(NAME, attend_to_rows)
