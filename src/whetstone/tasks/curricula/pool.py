"""The same few tasks, again and again: what replay, and statistics of single tasks, need."""

from __future__ import annotations

from random import Random

from whetstone.contracts import fulfils
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.tasks.protocol import Counted, Source


class Pool:
    """Goes round the first `size` training tasks, in a new order each time round.

    Args:
        size: Tasks.
    """

    def __init__(self, *, size: int, seed: int = 0) -> None:
        if size < 1:
            raise OptionError("size", f"one task or more, got {size}")
        self.size, self.seed = size, seed

    def check(self, source: Source, first: int) -> None:
        """Whether the source has so many tasks.

        Raises:
            TaskError: It has not.
        """
        most = source.training_tasks if fulfils(source, Counted) else None
        if most is not None and self.size > most:
            raise TaskError(f"size: {self.size} tasks are asked for, there are {most}")

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """See `Curriculum`."""
        rounds, place = divmod(number, self.size)
        order = list(range(self.size))
        Random(f"{self.seed}/{rounds}").shuffle(order)
        return first + order[place]
