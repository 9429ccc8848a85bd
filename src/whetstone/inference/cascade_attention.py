"""Shared-prefix (cascade) attention: the KV cache of a common prompt is read once for all sequences of a group.

    o = (e^{l₁} o₁ + e^{l₂} o₂) / (e^{l₁} + e^{l₂})      l: log-sum-exp of the scores of a part

The shared prefix of each group of slots is read by all their queries together; the rest of each slot is read
separately. Every partition of the keys gives the same sum up to rounding. In half precision the partition that reads
the fewest keys is chosen. In float32 the bits must not depend on other sequences: the prefix is always the prompt,
shared or not, and the rest is read in blocks at fixed positions.

Note:
    Slots share prefixes of different lengths. The mask of the second part starts at the end of the slot's prefix.

Source: Juravsky et al. 2024, arXiv:2402.05099, section 3 (Hydragen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from whetstone.inference.kv_cache import KVCache
from whetstone.inference.kv_sharing import SharedPrefix

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""CPU kernel of `scaled_dot_product_attention`; it also returns the log-sum-exp."""
_GRAIN = 16
"""The second part starts at multiples of this number."""
_WORTH, _CALL = 0.8, 64
"""Maximum ratio of keys read with and without shared prefixes; cost of one more group, in keys."""
_TILE, _FEWEST = 32, 4
"""Queries per tile of the kernel; with fewer than four, the order of sums depends on the memory address."""
_BLOCK = 192
"""Number of keys up to which the order of sums does not depend on the number of masked keys."""
_SUMS = 16
"""Maximum number of elements in a processor's vector."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """Shared prefixes that a decode step reads."""

    sets: list[tuple[int, int, int]]
    """(a slot of the group, prefix length in tokens, number of slots that read it) per group."""
    members: Tensor
    """[≤ B] slots that are in a group, group by group."""


@dataclass(frozen=True, slots=True, eq=False)
class PrivateSpan:
    """Span of positions that each slot reads separately."""

    start: int
    end: int
    bias: Tensor
    """[R, 1, 1, end − start] 0 for visible keys, −inf elsewhere; R slots of the span or chosen slots."""
    unread: Tensor
    """[R, 1, 1] whether a slot sees no key of the span."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeReadPlan:
    """Keys that one decode step reads, equal for all layers."""

    beginnings: SharedPrefixes | None
    """Prefixes that are read once for several slots; None if that is not faster."""
    parts: list[PrivateSpan]
    """Spans after the prefix that each slot reads separately, in the order of positions."""


def plan_reads(cache: KVCache, dtype: torch.dtype, prompts: Sequence[int] | None) -> DecodeReadPlan:
    """Plan which keys the decode step reads that the cache is aimed at.

    Args:
        cache: Cache after `KVCache.select_slots`.
        dtype: Data type of the scores.
        prompts: [B] prompt length of each slot, in tokens; None: any partition is allowed.
    """
    lengths = cache.places[:, 0].tolist()
    rows = cache.chosen.tolist()
    if prompts is None:
        sets = cache.origins.group_by_prefix(rows, [max(1, length) for length in lengths])
        min_shared = min(one.length for one in sets) // _GRAIN * _GRAIN
        read_once = sum(one.length + _CALL for one in sets)
        pays = read_once + len(rows) * (cache.reach - min_shared) <= _WORTH * len(rows) * cache.reach
        if not pays or min(lengths) == 0:
            sets = []
        block = cache.reach
    else:
        # the last token of a prompt is not shared: its logits are needed
        ends = [max(0, prompt - 1) // _GRAIN * _GRAIN for prompt in prompts]
        sets = cache.origins.group_equal(rows, ends)
        block = _BLOCK
    begins = torch.zeros(len(rows), 1, dtype=torch.long)
    for one in sets:
        begins[list(one.members)] = one.length
    start = int(begins.min()) // _GRAIN * _GRAIN
    keys = torch.arange(cache.reach)
    seen = (keys >= begins) & (keys <= cache.places.cpu())
    cuts = [start, *range(start // block * block + block, cache.reach, block), cache.reach]
    parts = [_private_span(seen, low, high, dtype, cache) for low, high in pairwise(cuts)]
    return DecodeReadPlan(_shared_prefixes(sets, rows) if sets else None, parts)


def attend_by_plan(
    query: Tensor, key: Tensor, value: Tensor, cache: KVCache, layer: int, reading: DecodeReadPlan, scale: float
) -> Tensor:
    """Compute attention of one new token per slot.

    Args:
        query: [B, H, D], each head contiguous.
        key: [R, K, reach, D], of the span or of the chosen slots; H is a multiple of K.
        value: Same shape as `key`.
        cache: KV cache.
        layer: Index of the layer.
        reading: Keys to read.
        scale: Factor of the scores.

    Returns:
        [B, H, D].
    """
    batch, heads, width = query.shape
    stacked = query.view(batch, key.shape[1], -1, width)
    spread = cache.spread
    own = _pad_queries(stacked)
    if spread is not None:
        everyone = own.new_zeros(len(key), *own.shape[1:])
        everyone[spread] = own
        own = everyone
    read = (
        []
        if reading.beginnings is None
        else [(0, *_attend_to_shared(stacked, cache, layer, reading.beginnings, scale))]
    )
    for part in reading.parts:
        span = slice(part.start, part.end)
        mixed, sums = _flash(own, key[:, :, span], value[:, :, span], 0.0, False, attn_mask=part.bias, scale=scale)
        mixed, sums = (
            mixed[:, :, : stacked.shape[2]],
            sums[:, :, : stacked.shape[2]].masked_fill(part.unread, -torch.inf),
        )
        if spread is not None:
            mixed, sums = mixed[spread], sums[spread]
        read.append((1 + part.start // _BLOCK, mixed, sums))
    if len(read) == 1:
        return read[0][1].reshape(batch, heads, width)
    # a fixed position for each sum, padded to whole vectors: otherwise other sequences change the last bits
    known = sums.new_full((*stacked.shape[:-1], -(-(read[-1][0] + 1) // _SUMS) * _SUMS), -torch.inf)
    for place, _, sums in read:
        known[..., place] = sums
    shares = known.softmax(-1)
    together = sum(mixed * shares[..., place, None] for place, mixed, _ in read)
    assert isinstance(together, Tensor)
    return together.to(query.dtype).reshape(batch, heads, width)


def _attend_to_shared(
    query: Tensor, cache: KVCache, layer: int, beginnings: SharedPrefixes, scale: float
) -> tuple[Tensor, Tensor]:
    """Return ([B, K, H / K, D], [B, K, H / K]): attention over the shared prefixes, and its log-sum-exp."""
    rows: Any = cache.layers[layer]
    _, key_heads, group, width = query.shape
    members = beginnings.members
    queries = query[members].transpose(0, 1).flatten(1, 2).unsqueeze(0)  # [1, K, members · H / K, D]
    outputs = []
    for part, (row, length, count) in zip(
        torch.split(queries, [count * group for _, _, count in beginnings.sets], dim=2), beginnings.sets, strict=True
    ):
        keys, values = rows.keys[row, None, :, :length], rows.values[row, None, :, :length]
        mixed, sums = _flash(_pad_queries(part), keys, values, 0.0, False, scale=scale)
        outputs.append((mixed[0, :, : count * group], sums[0, :, : count * group]))
    mixed = (
        torch.cat([mixed for mixed, _ in outputs], dim=1).view(key_heads, len(members), group, width).transpose(0, 1)
    )
    sums = torch.cat([sums for _, sums in outputs], dim=1).view(key_heads, len(members), group).transpose(0, 1)
    everyone, known = query.new_zeros(query.shape), sums.new_full(query.shape[:-1], -torch.inf)
    everyone[members], known[members] = mixed, sums
    return everyone, known


def _pad_queries(queries: Tensor) -> Tensor:
    """Pad [..., queries, D] so that the last tile of the kernel has at least four queries."""
    last = queries.shape[-2] % _TILE
    return pad(queries, (0, 0, 0, _FEWEST - last)) if 0 < last < _FEWEST else queries


def _shared_prefixes(sets: list[SharedPrefix], rows: list[int]) -> SharedPrefixes:
    members = torch.tensor([member for one in sets for member in one.members])
    return SharedPrefixes([(rows[one.members[0]], one.length, len(one.members)) for one in sets], members)


def _private_span(seen: Tensor, start: int, end: int, dtype: torch.dtype, cache: KVCache) -> PrivateSpan:
    """Build a span from `seen`, [B, reach] visible keys of the chosen slots, expanded to the slots that are read."""
    visible = seen[:, start:end]
    bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)[:, None, None]
    unread = ~visible.any(1)[:, None, None]
    if cache.spread is not None and cache.span is not None:
        count = cache.span.stop - cache.span.start
        spread_bias, spread_unread = bias.new_zeros(count, *bias.shape[1:]), unread.new_zeros(count, 1, 1)
        spread_bias[cache.spread], spread_unread[cache.spread] = bias, unread
        bias, unread = spread_bias, spread_unread
    return PrivateSpan(start, end, bias, unread)
