"""Where do keys and values of running episodes live? In rows of fixed tensors, one row an episode.

A forward pass writes the new tokens of some rows, each at its own place, and attends to everything those
rows hold. It is a Transformers cache, so any causal model of the library writes into it unchanged.

Easy to get wrong: rows have different lengths. What lies behind a row's length is rubbish from padding and
from earlier episodes; the mask hides it, and it is overwritten before it is ever counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_GRAIN = 64
"""The capacity of the rows grows by so many tokens at a time."""


class RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer for all rows, [rows, heads, capacity, width]."""

    is_sliding = False
    is_compileable = False

    def __init__(self, rows: RowCache) -> None:
        super().__init__()
        self.rows = rows
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Room for every row, in the type and on the device of the first keys."""
        assert value_states is not None
        self.keys = _room(key_states, self.rows.count)
        self.values = _room(value_states, self.rows.count)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens of the chosen rows; return all these rows hold, up to the longest."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows
        if self.keys.shape[2] < rows.reach:
            self.keys, self.values = _grown(self.keys, rows.reach), _grown(self.values, rows.reach)
        at = (rows.chosen.unsqueeze(1), slice(None), rows.places)
        self.keys[at] = key_states.transpose(1, 2)  # indexing puts the heads last but one
        self.values[at] = value_states.transpose(1, 2)
        if rows.whole:
            return self.keys[: len(rows.chosen), :, : rows.reach], self.values[: len(rows.chosen), :, : rows.reach]
        return self.keys[rows.chosen, :, : rows.reach], self.values[rows.chosen, :, : rows.reach]

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
    """All layers of the rows, and which rows and places the next forward pass is about."""

    def __init__(self, layers: int, count: int) -> None:
        self.count = count
        self.chosen = torch.zeros(0, dtype=torch.long)
        self.places = torch.zeros(0, 0, dtype=torch.long)
        self.reach, self.whole = 0, False
        super().__init__(layers=[RowLayer(self) for _ in range(layers)])

    def aim(self, chosen: Tensor, starts: Tensor, width: int) -> None:
        """The next forward pass brings `width` tokens for each of the `chosen` rows, from its start on.

        Args:
            chosen: [B] rows, ascending.
            starts: [B] how many tokens each row holds already.
        """
        self.chosen = chosen
        self.places = starts.unsqueeze(1) + torch.arange(width, device=starts.device)
        self.reach = int(self.places.max()) + 1
        # rows 0…B−1 are a view, any other choice is a copy
        self.whole = bool(chosen[-1] == len(chosen) - 1)

    def mask(self) -> Tensor:
        """[B, 1, width, reach] True where a new token may look: at itself and everything before it in its row."""
        return (torch.arange(self.reach, device=self.places.device) <= self.places.unsqueeze(-1)).unsqueeze(1)


def _room(states: Tensor, rows: int) -> Tensor:
    _, heads, _, width = states.shape
    return states.new_zeros(rows, heads, _GRAIN, width)


def _grown(held: Tensor, reach: int) -> Tensor:
    rows, heads, capacity, width = held.shape
    grown = held.new_zeros(rows, heads, -(-reach // _GRAIN) * _GRAIN, width)
    grown[:, :, :capacity] = held
    return grown
