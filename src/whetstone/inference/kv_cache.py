"""KV cache of running episodes: fixed tensors with one slot per episode.

A forward pass writes the new tokens of some slots, each at its own position, and attends to all tokens of those slots.
The class is a Transformers cache, so every causal model of the library can write into it unchanged.

Note:
    Slots have different lengths. Positions after the length of a slot contain invalid data from padding and from
    earlier episodes; the mask hides them, and they are overwritten before they become visible.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from whetstone.inference.kv_sharing import PrefixSharing
from whetstone.policies import get_setting

_GRAIN, _ODD_REACHES = 64, (256, 320)
"""Granularity in tokens of the keys that several queries read, and lengths that are avoided. MKL sums 256 and 320 keys
in another order than both shorter and longer ones; in blocks of 512 the remainder decides."""
_VECTOR_GRAIN, _VECTOR_LEAST, _VECTOR_QUERIES = 16, 64, 3
"""Granularity and minimum length in tokens for up to three queries, which are summed as vectors in the same order."""


class KVCacheLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer for all slots, each [slots, heads, capacity, width].

    Created by `KVCache`. Transformers calls `update` in every forward pass.

    Args:
        rows: Cache that selects slots and positions.
    """

    is_sliding = False
    is_compileable = False

    def __init__(self, rows: KVCache) -> None:
        super().__init__()
        self.rows = rows
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Allocate the keys and values of all slots, with the data type and device of the first keys."""
        assert value_states is not None
        self.keys = _allocate(key_states, self.rows)
        self.values = _allocate(value_states, self.rows)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values of new tokens, and return those that attention reads.

        Slots and positions are those of `KVCache.select_slots`.

        Args:
            key_states: [B, heads, L, width] keys of the new tokens.
            value_states: [B, heads, L, width] values of the new tokens.
            args: Further arguments of Transformers, ignored.
            kwargs: Further arguments of Transformers, ignored.

        Returns:
            Keys and values, each [R, heads, reach, width]: views of a contiguous span of slots, or copies of the
            selected slots.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows
        for stored, new in ((self.keys, key_states), (self.values, value_states)):
            stored.view(-1, stored.shape[-1]).index_copy_(
                0, rows.slot_indices(stored.shape[1]), new.reshape(-1, new.shape[-1])
            )
        if rows.span is not None:
            return self.keys[rows.span, :, : rows.reach], self.values[rows.span, :, : rows.reach]
        return self.keys[rows.chosen, :, : rows.reach], self.values[rows.chosen, :, : rows.reach]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` tokens from one slot to another."""
        if self.is_initialized:
            self.keys[target, :, :length] = self.keys[source, :, :length]
            self.values[target, :, :length] = self.values[source, :, :length]

    def wipe_slot(self, row: int) -> None:
        """Overwrite the keys and values of a slot with zeros."""
        if self.is_initialized:
            self.keys[row] = 0
            self.values[row] = 0

    def release(self) -> None:
        """Free the memory of the layer; the next keys allocate it again."""
        if self.is_initialized:
            self.keys = self.values = self.keys.new_empty(0)
            self.is_initialized = False

    def get_seq_length(self) -> int:
        """Return 0: slots have different lengths.

        Positions and masks are passed to the model explicitly.
        """
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return (number of visible keys, offset 0), as Transformers requires."""
        return self.rows.reach, 0

    def get_max_length(self) -> int:
        """Return −1: Transformers must not limit the length."""
        return -1


class KVCache(Cache):  # type: ignore[misc]
    """KV cache of all layers, with the slots and positions of the next forward pass.

    Created by `SlotForward`.

    Args:
        layers: Number of attention layers of the model.
        count: Number of slots.
        length: Maximum number of tokens per slot.
    """

    def __init__(self, layers: int, count: int, length: int) -> None:
        self.count = count
        # padding of a forward pass can follow the last token
        self.capacity = _padded_length(length + _GRAIN, _GRAIN)
        self.chosen = torch.zeros(0, dtype=torch.long)
        self.places = torch.zeros(0, 0, dtype=torch.long)
        self.reach = 0
        self.span: slice | None = None
        """Contiguous slots that attention reads in place; None if the selected slots are copied."""
        self.spread: Tensor | None = None
        """[B] index of each selected slot in `span`; None if the span has only the selected slots."""
        self.origins = PrefixSharing(count)
        self._slots: dict[int, Tensor] = {}
        super().__init__(layers=[KVCacheLayer(self) for _ in range(layers)])

    def select_slots(self, chosen: Sequence[int], places: Tensor, *, queries: int, device: torch.device) -> None:
        """Select the slots and positions that the next forward pass writes and reads.

        Args:
            chosen: [B] slots, ascending. The last slot can be repeated as padding, whose output is ignored.
            places: [B, width] position of each new token in its slot; on the CPU, to avoid synchronizing the device.
            queries: Number of queries per key head, which determines the padding of the keys.
            device: Device of the slots.
        """
        self.chosen = torch.tensor(chosen, device=device)
        self.places = places.to(device)
        self.reach = _padded_length(int(places.max()) + 1, queries)
        low, size = chosen[0], chosen[-1] + 1 - chosen[0]
        is_padded = len(chosen) > 1 and chosen[-1] == chosen[-2]
        # a copy is read and written in addition to the slots: faster only if most of them are not chosen
        self.span = slice(low, low + size) if size <= 3 * len(chosen) and not is_padded else None
        self.spread = self.chosen - low if self.span is not None and size != len(chosen) else None
        self._slots = {}

    def slot_indices(self, heads: int) -> Tensor:
        """Return [B · heads · width] indices of the new tokens in a flattened layer [slots, heads, capacity]."""
        known = self._slots.get(heads)
        if known is None:
            of_heads = self.chosen.unsqueeze(1) * heads + torch.arange(heads, device=self.chosen.device)
            known = self._slots[heads] = (of_heads.unsqueeze(2) * self.capacity + self.places.unsqueeze(1)).reshape(-1)
        return known

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` tokens from one slot to another, in all layers."""
        self.origins.record_copy(source, target, length)
        for layer in self.layers:
            layer.copy(source, target, length)

    def wipe_slot(self, row: int) -> None:
        """Overwrite a slot with zeros in all layers.

        Called after non-finite logits: a mask does not hide values that are not finite.
        """
        self.origins.record_wipe(row)
        for layer in self.layers:
            layer.wipe_slot(row)

    def release(self) -> None:
        """Free the memory of all layers; the next forward pass allocates it again."""
        self.origins = PrefixSharing(self.count)
        for layer in self.layers:
            layer.release()


def bytes_per_token(model: torch.nn.Module) -> int:
    """Return the size of the KV cache of one token in all layers, in bytes.

    For models that keep a recurrent state instead, the size of the hidden states of all layers is returned, an upper
    bound.
    """
    config: Any = model.config
    config = config.get_text_config()
    size = next(model.parameters()).element_size()
    layers, hidden = get_setting(config, "num_hidden_layers") or 1, get_setting(config, "hidden_size") or 0
    queries = get_setting(config, "num_attention_heads")
    if queries is None:
        return int(2 * layers * hidden * size)
    heads = get_setting(config, "num_key_value_heads") or queries
    width = get_setting(config, "head_dim") or hidden // queries
    return int(2 * layers * heads * width * size)


def _padded_length(length: int, queries: int) -> int:
    """Return the number of keys to read for slots of `length` tokens.

    The number is chosen so that masked positions do not change a bit of the result.

    Args:
        length: Maximum number of tokens in the slots.
        queries: Number of queries per key head.
    """
    if queries <= _VECTOR_QUERIES:
        return max(_VECTOR_LEAST, -(-length // _VECTOR_GRAIN) * _VECTOR_GRAIN)
    reach = -(-length // _GRAIN) * _GRAIN
    return reach + next((384 - odd for odd in _ODD_REACHES if reach % 512 == odd), 0)


def _allocate(states: Tensor, rows: KVCache) -> Tensor:
    """Allocate the keys or values of a layer as zeros, because masked values are still multiplied.

    On a CPU, memory that is not used costs nothing.

    Note:
        With huge pages, a slot with one token would take two megabytes per head and layer.
    """
    _, heads, _, width = states.shape
    shape = (rows.count, heads, rows.capacity, width)
    if states.device.type != "cpu":
        return states.new_zeros(shape)
    room = mmap.mmap(-1, rows.count * heads * rows.capacity * width * states.element_size())
    if sys.platform == "linux":
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(room, dtype=states.dtype).view(shape)
