"""In which order is stored data gone through? All of it once, shuffled, and then again in another order."""

from __future__ import annotations

from whetstone.seeding import derive_random


class Shuffled:
    """Places among `count` things: the n-th draw depends on the seed and n alone, so a run goes on anywhere.

    Args:
        count: How many there are, at least 1.
        seed: Of the order.
    """

    def __init__(self, count: int, *, seed: int) -> None:
        self._count, self._seed = count, seed
        self._passed: tuple[int, list[int]] = (-1, [])

    def __getitem__(self, draw: int) -> int:
        """The place of the n-th draw, from 0; everything comes once before anything comes again."""
        past, place = divmod(draw, self._count)
        if past != self._passed[0]:
            order = list(range(self._count))
            derive_random(self._seed, "order", past).shuffle(order)
            self._passed = (past, order)
        return self._passed[1][place]
