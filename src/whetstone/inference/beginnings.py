"""How do siblings attend to the prompt they share? Its keys are read once for all of them, and joined with their own.

    o = (e^{l₁} o₁ + e^{l₂} o₂) / (e^{l₁} + e^{l₂})      l: the logarithm of the sum of exponentials of a part's scores

The beginning of each set of rows that begin alike is read by all their queries at once; what each row has behind it
is read on its own. Any division of the keys gives the same sum up to rounding.

Easy to get wrong: rows share different lengths. The mask of the second part begins where the row's first part ends.

Source: Juravsky et al. 2024, arXiv:2402.05099, section 3 (Hydragen).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whetstone.inference.cache import RowCache
from whetstone.inference.origins import Shared

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The kernel behind `scaled_dot_product_attention` on a CPU; it gives the logarithm of the sums, too."""
_GRAIN = 16
"""The second part begins at multiples of this."""
_WORTH, _CALL = 0.8, 64
"""Keys read with shared beginnings may be this share of those read without; a set more costs as much as so many."""


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """What a decode step reads of sets of rows that begin alike."""

    sets: list[tuple[int, int, int]]
    """(a row of the set, how much of it is read, how many read it)"""
    order: Tensor
    """[B] rows, set by set."""
    back: Tensor
    """[B] where in that order each row is."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Which keys one decode step reads, the same in all layers.

    Args:
        beginnings: What is read once for several rows; None where that does not pay.
        start: Where the keys that each row reads on its own begin.
        bias: [R, 1, 1, reach − start] 0 where a row may look, −inf elsewhere; R rows of the span or the chosen.
    """

    beginnings: Beginnings | None
    start: int
    bias: Tensor


def reading_of(cache: RowCache, dtype: torch.dtype) -> Reading:
    """What the decode step the cache is aimed at reads."""
    lengths = cache.places[:, 0].tolist()
    rows = cache.chosen.tolist()
    sets = cache.origins.shared(rows, [max(1, length) for length in lengths])
    least = min(one.length for one in sets) // _GRAIN * _GRAIN
    read_once = sum(one.length + _CALL for one in sets)
    keys = torch.arange(cache.reach)
    places = cache.places.cpu()
    pays = read_once + len(rows) * (cache.reach - least) <= _WORTH * len(rows) * cache.reach
    if not pays or min(lengths) == 0:
        return Reading(None, 0, _spread(_bias(keys <= places, dtype), cache))
    begins = torch.zeros(len(rows), 1, dtype=torch.long)
    for one in sets:
        begins[list(one.members)] = one.length
    own = keys[least:]
    return Reading(_beginnings(sets, rows), least, _spread(_bias((own >= begins) & (own <= places), dtype), cache))


def attend(
    query: Tensor, key: Tensor, value: Tensor, cache: RowCache, layer: int, reading: Reading, scale: float
) -> Tensor:
    """Attention of one new token a row.

    Args:
        query: [B, H, D], each head in one piece.
        key: [R, K, reach, D], the span or the chosen rows; H is a multiple of K.
        value: Like `key`.
        scale: Of the scores.

    Returns:
        [B, H, D]
    """
    batch, heads, width = query.shape
    stacked = query.view(batch, key.shape[1], -1, width)
    spread = cache.spread
    own = stacked
    if spread is not None:
        own = stacked.new_zeros(len(key), *stacked.shape[1:])
        own[spread] = stacked
    start = reading.start
    mixed, sums = _flash(own, key[:, :, start:], value[:, :, start:], 0.0, False, attn_mask=reading.bias, scale=scale)
    if spread is not None:
        mixed, sums = mixed[spread], sums[spread]
    if reading.beginnings is not None:
        first, first_sums = _of_beginnings(stacked, cache, layer, reading.beginnings, scale)
        share = torch.sigmoid(first_sums - sums).unsqueeze(-1)
        mixed = torch.lerp(mixed.float(), first.float(), share).to(query.dtype)
    together: Tensor = mixed.reshape(batch, heads, width)
    return together


def _of_beginnings(
    query: Tensor, cache: RowCache, layer: int, beginnings: Beginnings, scale: float
) -> tuple[Tensor, Tensor]:
    """([B, K, H / K, D], [B, K, H / K]) attention over the beginnings alone, and the logarithms of its sums."""
    rows: Any = cache.layers[layer]
    batch, kept, group, width = query.shape
    queries = query[beginnings.order].transpose(0, 1).flatten(1, 2).unsqueeze(0)  # [1, K, B · H / K, D]
    parts = torch.split(queries, [count * group for _, _, count in beginnings.sets], dim=2)
    read = [
        _flash(part, rows.keys[row, None, :, :length], rows.values[row, None, :, :length], 0.0, False, scale=scale)
        for part, (row, length, _) in zip(parts, beginnings.sets, strict=True)
    ]
    mixed = torch.cat([mixed for mixed, _ in read], dim=2).view(kept, batch, group, width)
    sums = torch.cat([sums for _, sums in read], dim=2).view(kept, batch, group)
    return mixed.transpose(0, 1)[beginnings.back], sums.transpose(0, 1)[beginnings.back]


def _beginnings(sets: list[Shared], rows: list[int]) -> Beginnings:
    order = torch.tensor([member for one in sets for member in one.members])
    described = [(rows[one.members[0]], one.length, len(one.members)) for one in sets]
    return Beginnings(described, order, torch.argsort(order))


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, 1, 1, keys] 0 where it is seen, −inf elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)[:, None, None]


def _spread(bias: Tensor, cache: RowCache) -> Tensor:
    """The same for the rows that are read, whoever is asked about among them."""
    if cache.spread is None or cache.span is None:
        return bias
    everyone = bias.new_zeros(cache.span.stop - cache.span.start, *bias.shape[1:])
    everyone[cache.spread] = bias
    return everyone
