"""Where do keys and values of running episodes live? In rows of fixed tensors, one row an episode.

A forward pass writes the new tokens of some rows, each at its own place, and attends to everything those
rows hold. It is a Transformers cache, so any causal model of the library writes into it unchanged.

Easy to get wrong: rows have different lengths. What lies behind a row's length is rubbish from padding and
from earlier episodes; the mask hides it, and it is overwritten before it is ever counted.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from whetstone.inference.origins import Origins
from whetstone.policies import setting_of

_GRAIN, _ODD_REACHES = 64, (256, 320)
"""Attention of several queries reads keys in multiples of 64, but never so many: MKL adds these up in another
order than both fewer and more. In blocks of 512 the rest decides."""
_VECTOR_GRAIN, _VECTOR_LEAST, _VECTOR_QUERIES = 16, 64, 3
"""Up to three queries are summed as vectors, one way for all lengths from 64 on."""


class RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer for all rows, each [rows, heads, capacity, width]."""

    is_sliding = False
    is_compileable = False

    def __init__(self, rows: RowCache) -> None:
        super().__init__()
        self.rows = rows
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Room for every row, in the type and on the device of the first keys."""
        assert value_states is not None
        self.keys = _room(key_states, self.rows)
        self.values = _room(value_states, self.rows)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens of the chosen rows; return what `RowCache.aim` found best to read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            held.view(-1, held.shape[-1]).index_copy_(0, rows.slots(held.shape[1]), new.reshape(-1, new.shape[-1]))
        if rows.span is not None:
            return self.keys[rows.span, :, : rows.reach], self.values[rows.span, :, : rows.reach]
        return self.keys[rows.chosen, :, : rows.reach], self.values[rows.chosen, :, : rows.reach]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give one row the first tokens of another."""
        if self.is_initialized:
            self.keys[target, :, :length] = self.keys[source, :, :length]
            self.values[target, :, :length] = self.values[source, :, :length]

    def wipe(self, row: int) -> None:
        """Nothing is left of what was in it."""
        if self.is_initialized:
            self.keys[row] = 0
            self.values[row] = 0

    def let_go(self) -> None:
        """Nothing is held until the next keys come."""
        if self.is_initialized:
            self.keys = self.values = self.keys.new_empty(0)
            self.is_initialized = False

    def get_seq_length(self) -> int:
        """Not one number here; positions and masks are given to the model explicitly."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys seen, offset)"""
        return self.rows.reach, 0

    def get_max_length(self) -> int:
        """No bound of its own."""
        return -1


class RowCache(Cache):  # type: ignore[misc]
    """All layers of the rows, and which rows and places the next forward pass is about.

    Args:
        layers: Attention layers of the model.
        count: Rows.
        length: Tokens a row can hold.
    """

    def __init__(self, layers: int, count: int, length: int) -> None:
        self.count = count
        # what fills up a pass may stand behind the last token
        self.capacity = _reach(length + _GRAIN, _GRAIN)
        self.chosen = torch.zeros(0, dtype=torch.long)
        self.places = torch.zeros(0, 0, dtype=torch.long)
        self.reach = 0
        self.span: slice | None = None
        """The rows attention reads as they lie; None where only the chosen ones are read, from a copy."""
        self.spread: Tensor | None = None
        """[B] where each chosen row stands in the span; None where that is the same order."""
        self.origins = Origins(count)
        self._slots: dict[int, Tensor] = {}
        super().__init__(layers=[RowLayer(self) for _ in range(layers)])

    def aim(self, chosen: Sequence[int], places: Tensor, *, queries: int, device: torch.device) -> None:
        """The next forward pass brings new tokens for the `chosen` rows.

        Args:
            chosen: [B] rows, ascending; the last may be named again and again, where nobody reads what comes out.
            places: [B, width] where in its row each new token goes; on the CPU, lest the device be waited for.
            queries: How many attend to one key head at once.
            device: Where the rows are.
        """
        self.chosen = torch.tensor(chosen, device=device)
        self.places = places.to(device)
        self.reach = _reach(int(places.max()) + 1, queries)
        low, size = chosen[0], chosen[-1] + 1 - chosen[0]
        again = len(chosen) > 1 and chosen[-1] == chosen[-2]
        # a copy is read and written once more than the rows themselves: worth it only where most are not asked for
        self.span = slice(low, low + size) if size <= 3 * len(chosen) and not again else None
        self.spread = self.chosen - low if self.span is not None and size != len(chosen) else None
        self._slots = {}

    def slots(self, heads: int) -> Tensor:
        """[B · heads · width] where the new tokens go, of a layer's rows, heads and places laid end to end."""
        known = self._slots.get(heads)
        if known is None:
            of_heads = self.chosen.unsqueeze(1) * heads + torch.arange(heads, device=self.chosen.device)
            known = self._slots[heads] = (of_heads.unsqueeze(2) * self.capacity + self.places.unsqueeze(1)).reshape(-1)
        return known

    def copy(self, source: int, target: int, length: int) -> None:
        """Give one row the first tokens of another."""
        self.origins.copied(source, target, length)
        for layer in self.layers:
            layer.copy(source, target, length)

    def wipe(self, row: int) -> None:
        """Nothing is left of what was in it: a mask does not hide what is not finite."""
        self.origins.wiped(row)
        for layer in self.layers:
            layer.wipe(row)

    def let_go(self) -> None:
        """Nothing is held any more; the next pass makes room anew."""
        self.origins = Origins(self.count)
        for layer in self.layers:
            layer.let_go()


def bytes_per_token(model: torch.nn.Module) -> int:
    """What one token's keys and values take in all layers; of what keeps a state instead, at most what the hidden
    states of its layers take."""
    config: Any = model.config
    config = config.get_text_config()
    size = next(model.parameters()).element_size()
    layers, hidden = setting_of(config, "num_hidden_layers") or 1, setting_of(config, "hidden_size") or 0
    queries = setting_of(config, "num_attention_heads")
    if queries is None:
        return int(2 * layers * hidden * size)
    heads = setting_of(config, "num_key_value_heads") or queries
    width = setting_of(config, "head_dim") or hidden // queries
    return int(2 * layers * heads * width * size)


def _reach(length: int, queries: int) -> int:
    """How far attention reads for rows of this length, so that more or fewer masked places change no bit."""
    if queries <= _VECTOR_QUERIES:
        return max(_VECTOR_LEAST, -(-length // _VECTOR_GRAIN) * _VECTOR_GRAIN)
    reach = -(-length // _GRAIN) * _GRAIN
    return reach + next((384 - odd for odd in _ODD_REACHES if reach % 512 == odd), 0)


def _room(states: Tensor, rows: RowCache) -> Tensor:
    """Zeros, for what is masked is still multiplied. On a CPU memory that is not used yet costs nothing.

    Easy to get wrong: with huge pages a row of which one token is used takes two megabytes a head and layer.
    """
    _, heads, _, width = states.shape
    shape = (rows.count, heads, rows.capacity, width)
    if states.device.type != "cpu":
        return states.new_zeros(shape)
    room = mmap.mmap(-1, rows.count * heads * rows.capacity * width * states.element_size())
    if sys.platform == "linux":
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(room, dtype=states.dtype).view(shape)
