"""What have sources in common whose tasks are all known? Training goes on for ever, evaluation has them in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from whetstone.seeding import derive_random
from whetstone.trajectory import Task


class ListedTasks:
    """A source over two lists of tasks.

    Args:
        training: Those that are trained on.
        held_out: Those that are evaluated, in their order.
        seed: The order in which training tasks come.
    """

    def __init__(self, training: Sequence[Task], held_out: Sequence[Task], *, seed: int) -> None:
        self._training, self._held_out, self._seed = training, held_out, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @property
    def training_tasks(self) -> int:
        """How many there are to train on."""
        return len(self._training)

    def task(self, index: int) -> Task:
        """Each training task once an epoch, every epoch in another order."""
        epoch, place = divmod(index, len(self._training))
        return self._training[self._order(epoch)[place]]

    def held_out(self, count: int) -> Sequence[Task]:
        """The first so many, in the order they were published or written in."""
        return self._held_out[:count]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._training)))
        derive_random(self._seed, "order", epoch).shuffle(order)
        return order
