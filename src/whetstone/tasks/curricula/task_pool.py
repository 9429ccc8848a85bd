"""Curriculum over a fixed pool of tasks that repeats, as replay and statistics per task require."""

from __future__ import annotations

from random import Random

from whetstone.capabilities import implements_protocol
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.tasks.protocol import Finite, Source


class Pool:
    """Curriculum that cycles through the first `size` training tasks.

    Each round has another order.

    Args:
        size: Number of tasks.
        seed: Seed of the orders; filled in from the recipe.
    """

    def __init__(self, *, size: int, seed: int = 0) -> None:
        if size < 1:
            raise OptionError("size", f"must be 1 or more, got {size}")
        self.size, self.seed = size, seed

    def check(self, source: Source, first: int) -> None:
        """Check that the source has `size` training tasks.

        Raises:
            TaskError: If it has fewer.
        """
        most = source.training_tasks if implements_protocol(source, Finite) else None
        if most is not None and self.size > most:
            raise TaskError(f"size: the pool has {self.size} tasks, but the source has only {most}; set a smaller size")

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """Return the index of the next task of the round; see `Curriculum`."""
        rounds, place = divmod(number, self.size)
        order = list(range(self.size))
        Random(f"{self.seed}/{rounds}").shuffle(order)
        return first + order[place]
