"""How do siblings attend to the prompt they share? Its keys are read once for all of them, and joined with their own.

    o = (e^{l₁} o₁ + e^{l₂} o₂) / (e^{l₁} + e^{l₂})      l: the logarithm of the sum of exponentials of a part's scores

The beginning of each set of rows that begin alike is read by all their queries at once; what each row has behind it
is read on its own. Any division of the keys gives the same sum up to rounding, so in half precision the one that reads
least is taken. In float32 a row's bits must not tell who else is there: its beginning is its prompt, shared or not, and
what follows is read between the same places whoever needs more.

Easy to get wrong: rows share different lengths. The mask of the second part begins where the row's first part ends.

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

from whetstone.inference.cache import RowCache
from whetstone.inference.origins import Shared

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The kernel behind `scaled_dot_product_attention` on a CPU; it gives the logarithm of the sums, too."""
_GRAIN = 16
"""The second part begins at multiples of this."""
_WORTH, _CALL = 0.8, 64
"""Keys read with shared beginnings may be this share of those read without; a set more costs as much as so many."""
_TILE, _FEWEST = 32, 4
"""The kernel takes so many queries at a time; how fewer than four are summed depends on where they lie in memory."""
_BLOCK = 192
"""Up to so many keys are summed one way, however many of them are masked."""
_SUMS = 16
"""No vector of a processor has more numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """What a decode step reads of sets of rows that begin alike."""

    sets: list[tuple[int, int, int]]
    """(a row of the set, how much of it is read, how many read it)"""
    members: Tensor
    """[≤ B] rows that are in a set, set by set."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Places that each row reads on its own."""

    start: int
    end: int
    bias: Tensor
    """[R, 1, 1, end − start] 0 where a row may look, −inf elsewhere; R rows of the span or the chosen."""
    unread: Tensor
    """[R, 1, 1] whether a row looks at none of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Which keys one decode step reads, the same in all layers."""

    beginnings: Beginnings | None
    """What is read once for several rows; None where that does not pay."""
    parts: list[Part]
    """What each reads behind its beginning, in the order of places."""


def reading_of(cache: RowCache, dtype: torch.dtype, prompts: Sequence[int] | None) -> Reading:
    """What the decode step the cache is aimed at reads.

    Args:
        prompts: [B] how many of each row's first tokens are a prompt's; None: rows may be divided anywhere.
    """
    lengths = cache.places[:, 0].tolist()
    rows = cache.chosen.tolist()
    if prompts is None:
        sets = cache.origins.shared(rows, [max(1, length) for length in lengths])
        least = min(one.length for one in sets) // _GRAIN * _GRAIN
        read_once = sum(one.length + _CALL for one in sets)
        pays = read_once + len(rows) * (cache.reach - least) <= _WORTH * len(rows) * cache.reach
        if not pays or min(lengths) == 0:
            sets = []
        block = cache.reach
    else:
        # the last token of a prompt is each row's own: its logits are wanted
        ends = [max(0, prompt - 1) // _GRAIN * _GRAIN for prompt in prompts]
        sets = cache.origins.alike(rows, ends)
        block = _BLOCK
    begins = torch.zeros(len(rows), 1, dtype=torch.long)
    for one in sets:
        begins[list(one.members)] = one.length
    start = int(begins.min()) // _GRAIN * _GRAIN
    keys = torch.arange(cache.reach)
    seen = (keys >= begins) & (keys <= cache.places.cpu())
    cuts = [start, *range(start // block * block + block, cache.reach, block), cache.reach]
    parts = [_part(seen, low, high, dtype, cache) for low, high in pairwise(cuts)]
    return Reading(_beginnings(sets, rows) if sets else None, parts)


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
    own = _enough(stacked)
    if spread is not None:
        everyone = own.new_zeros(len(key), *own.shape[1:])
        everyone[spread] = own
        own = everyone
    read = (
        [] if reading.beginnings is None else [(0, *_of_beginnings(stacked, cache, layer, reading.beginnings, scale))]
    )
    for part in reading.parts:
        here = slice(part.start, part.end)
        mixed, sums = _flash(own, key[:, :, here], value[:, :, here], 0.0, False, attn_mask=part.bias, scale=scale)
        mixed, sums = (
            mixed[:, :, : stacked.shape[2]],
            sums[:, :, : stacked.shape[2]].masked_fill(part.unread, -torch.inf),
        )
        if spread is not None:
            mixed, sums = mixed[spread], sums[spread]
        read.append((1 + part.start // _BLOCK, mixed, sums))
    if len(read) == 1:
        return read[0][1].reshape(batch, heads, width)
    # each sum in a place of its own, and whole vectors of them: else the last bits tell who else is there
    known = sums.new_full((*stacked.shape[:-1], -(-(read[-1][0] + 1) // _SUMS) * _SUMS), -torch.inf)
    for place, _, sums in read:
        known[..., place] = sums
    shares = known.softmax(-1)
    together = sum(mixed * shares[..., place, None] for place, mixed, _ in read)
    assert isinstance(together, Tensor)
    return together.to(query.dtype).reshape(batch, heads, width)


def _of_beginnings(
    query: Tensor, cache: RowCache, layer: int, beginnings: Beginnings, scale: float
) -> tuple[Tensor, Tensor]:
    """([B, K, H / K, D], [B, K, H / K]) attention over the beginnings alone, and the logarithms of its sums."""
    rows: Any = cache.layers[layer]
    _, kept, group, width = query.shape
    members = beginnings.members
    queries = query[members].transpose(0, 1).flatten(1, 2).unsqueeze(0)  # [1, K, members · H / K, D]
    found = []
    for part, (row, length, count) in zip(
        torch.split(queries, [count * group for _, _, count in beginnings.sets], dim=2), beginnings.sets, strict=True
    ):
        keys, values = rows.keys[row, None, :, :length], rows.values[row, None, :, :length]
        mixed, sums = _flash(_enough(part), keys, values, 0.0, False, scale=scale)
        found.append((mixed[0, :, : count * group], sums[0, :, : count * group]))
    mixed = torch.cat([mixed for mixed, _ in found], dim=1).view(kept, len(members), group, width).transpose(0, 1)
    sums = torch.cat([sums for _, sums in found], dim=1).view(kept, len(members), group).transpose(0, 1)
    everyone, known = query.new_zeros(query.shape), sums.new_full(query.shape[:-1], -torch.inf)
    everyone[members], known[members] = mixed, sums
    return everyone, known


def _enough(queries: Tensor) -> Tensor:
    """[…, queries, D], and more that nobody reads where the kernel's last tile would have too few."""
    last = queries.shape[-2] % _TILE
    return pad(queries, (0, 0, 0, _FEWEST - last)) if 0 < last < _FEWEST else queries


def _beginnings(sets: list[Shared], rows: list[int]) -> Beginnings:
    members = torch.tensor([member for one in sets for member in one.members])
    return Beginnings([(rows[one.members[0]], one.length, len(one.members)) for one in sets], members)


def _part(seen: Tensor, start: int, end: int, dtype: torch.dtype, cache: RowCache) -> Part:
    """Of the chosen rows, [B, reach] what they see; for the rows that are read, whoever is asked about among them."""
    here = seen[:, start:end]
    bias = torch.zeros(here.shape, dtype=dtype).masked_fill_(~here, -torch.inf)[:, None, None]
    unread = ~here.any(1)[:, None, None]
    if cache.spread is not None and cache.span is not None:
        count = cache.span.stop - cache.span.start
        spread_bias, spread_unread = bias.new_zeros(count, *bias.shape[1:]), unread.new_zeros(count, 1, 1)
        spread_bias[cache.spread], spread_unread[cache.spread] = bias, unread
        bias, unread = spread_bias, spread_unread
    return Part(start, end, bias, unread)
