"""How does a new token attend to its row? Through Transformers' attention interface, over the rows as they lie.

The function is registered under a name and chosen by the engine's view of a model, so the model's own code
is unchanged. Queries that share keys (grouped heads) are stacked, so keys are never repeated.

On a CPU a token alone in its row is a matrix-vector product, which plain matrix multiplication does twice as fast as
the fused kernel (64 rows of 384 keys: 0.6 ms against 1.4). Several at once go to the fused kernel, and on a GPU all do:
one kernel is launched per layer instead of five.

Easy to get wrong: the two sum in different orders, so a token's last bits tell how it was computed. Which of the
two it is must depend on what the token is, a prompt's or a drawn one, never on who else is there; see `forward.py`.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from whetstone.inference.cache import RowCache
from whetstone.policies import chunk_of, softmax_with_sinks

NAME = "whetstone_rows"


class _Aimed(threading.local):
    cache: RowCache
    biases: dict[tuple[int | None, int | None], Tensor]


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
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of new tokens over the rows the cache is aimed at.

    Args:
        query: [B, H, L, D].
        key: [R, K, reach, D], the aimed span or the chosen rows; H is a multiple of K.
        value: [R, K, reach, D'].
        attention_mask: Not read; the cache knows who may look where.
        s_aux: [H] attention sinks: the score of a place that holds nothing.
        position_bias: Added to scores.

    Returns:
        [B, L, H, D']

    Raises:
        NotImplementedError: Scores have a bias; rows hold no tokens' places.
    """
    if position_bias is not None:
        raise NotImplementedError("rows of keys have no bias by position")
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    stacked = query.reshape(batch, key.shape[1], groups * length, width)
    spread = _aimed.cache.spread
    if spread is not None:
        everyone = stacked.new_zeros(len(key), *stacked.shape[1:])
        everyone[spread] = stacked
        stacked = everyone
    window, chunk = sliding_window, chunk_of(module)
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


def _bias(cache: RowCache, groups: int, window: int | None, chunk: int | None, dtype: torch.dtype, rows: int) -> Tensor:
    """[rows, 1, groups · L or 1, reach] 0 where a query may look, −inf elsewhere; the same for all layers."""
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


AttentionInterface.register(NAME, attend_to_rows)
