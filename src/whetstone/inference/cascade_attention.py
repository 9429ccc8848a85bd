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
"""CPU kernel of `scaled_dot_product_attention`, which also returns the log-sum-exp of the scores."""
_GRAIN = 16
"""Granularity in tokens of the start of the private spans."""
_WORTH, _CALL = 0.8, 64
"""Maximum ratio of keys read with and without shared prefixes; and cost of one more group of slots, in keys."""
_TILE, _FEWEST = 32, 4
"""Number of queries per tile of the kernel; and minimum number of queries in a tile. With fewer, the order of sums
depends on the memory address."""
_BLOCK = 192
"""Maximum number of keys per private span: up to it, the order of sums does not depend on the number of masked keys."""
_SUMS = 16
"""Maximum number of elements in a processor's vector."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """Groups of slots whose shared prefix a decode step reads once; see `DecodeReadPlan`."""

    sets: list[tuple[int, int, int]]
    """Per group: (slot from which the prefix is read, length of the prefix in tokens, number of slots that read it)."""
    members: Tensor
    """[M] indices in the batch of the M sequences that are in a group, group by group."""


@dataclass(frozen=True, slots=True, eq=False)
class PrivateSpan:
    """Span of positions after the shared prefix, which every slot reads separately.

    Part of a `DecodeReadPlan`.
    """

    start: int
    """First position of the span."""
    end: int
    """Position after the last one of the span."""
    bias: Tensor
    """[R, 1, 1, end − start] attention bias of the R slots that are read: 0 for visible keys, −inf elsewhere."""
    unread: Tensor
    """[R, 1, 1] whether no key of the span is visible to a slot."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeReadPlan:
    """Keys that a decode step reads: shared prefixes, and spans of each slot.

    `plan_reads` creates one plan per step, for all layers.
    """

    beginnings: SharedPrefixes | None
    """Shared prefixes that are read once for several slots; None if reading them once is not faster."""
    parts: list[PrivateSpan]
    """Spans after the shared prefixes, in the order of positions."""


def plan_reads(cache: KVCache, dtype: torch.dtype, prompts: Sequence[int] | None) -> DecodeReadPlan:
    """Plan which keys the next decode step reads once for several slots.

    `prompts` is given if the bits of a token must not depend on other sequences (float32). The shared part is then the
    prompt of each slot, and the rest is read in blocks at fixed positions. Otherwise the plan that reads the fewest
    keys is chosen.

    Args:
        cache: KV cache after `KVCache.select_slots`, with one new token per slot.
        dtype: Data type of the attention scores.
        prompts: [B] number of leading tokens of each slot that were computed as a prompt; None: any plan is allowed.
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
    """Compute attention of one new token per slot, with shared prefixes read once.

    Args:
        query: [B, H, D] queries, each head contiguous.
        key: [R, K, reach, D] keys of the R selected slots, or of the contiguous span that contains them; H is a
            multiple of K.
        value: [R, K, reach, D] values, as `key`.
        cache: KV cache after `KVCache.select_slots`.
        layer: Index of the layer.
        reading: Plan of the decode step, from `plan_reads`.
        scale: Factor of the attention scores.

    Returns:
        [B, H, D] attention outputs.
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
    """Compute attention over the shared prefixes only.

    Returns:
        [B, K, H / K, D] outputs and [B, K, H / K] log-sum-exp; 0 and −inf for sequences without a shared prefix.
    """
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
    """Build a span from [B, reach] whether a key is visible to each sequence.

    If the cache reads a contiguous span of slots, bias and `unread` are expanded from the B selected slots to all slots
    of that span.
    """
    visible = seen[:, start:end]
    bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)[:, None, None]
    unread = ~visible.any(1)[:, None, None]
    if cache.spread is not None and cache.span is not None:
        count = cache.span.stop - cache.span.start
        spread_bias, spread_unread = bias.new_zeros(count, *bias.shape[1:]), unread.new_zeros(count, 1, 1)
        spread_bias[cache.spread], spread_unread[cache.spread] = bias, unread
        bias, unread = spread_bias, spread_unread
    return PrivateSpan(start, end, bias, unread)
