"""Shuffled order of data: a new permutation in every pass (epoch)."""

from __future__ import annotations

from whetstone.seeding import derive_random


class ShuffledIndices:
    """Indices in shuffled order. The n-th index depends only on the seed and n, so that a run can resume anywhere.

    Args:
        count: Number of items, at least 1.
        seed: Seed of the order.
    """

    def __init__(self, count: int, *, seed: int) -> None:
        self._count, self._seed = count, seed
        self._passed: tuple[int, list[int]] = (-1, [])

    def __getitem__(self, draw: int) -> int:
        """Return the item index at position `draw` of the endless sequence; every item occurs once per pass."""
        past, place = divmod(draw, self._count)
        if past != self._passed[0]:
            order = list(range(self._count))
            derive_random(self._seed, "order", past).shuffle(order)
            self._passed = (past, order)
        return self._passed[1][place]
