"""`ListedTasks`: base class of sources with finite lists of tasks.

Training repeats the tasks in shuffled epochs; evaluation keeps their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from whetstone.seeding import derive_random
from whetstone.trajectory import Task


class ListedTasks:
    """Task source over two lists of tasks; each epoch of training has another order.

    Args:
        training: Training tasks.
        held_out: Held-out tasks, in the order of evaluation.
        seed: Determines the order of training tasks.
    """

    def __init__(self, training: Sequence[Task], held_out: Sequence[Task], *, seed: int) -> None:
        self._training, self._held_out, self._seed = training, held_out, seed
        self._order = lru_cache(maxsize=2)(self._shuffle)

    @property
    def training_tasks(self) -> int:
        """Return the number of training tasks, after which they repeat."""
        return len(self._training)

    @property
    def listed_tasks(self) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return all training tasks and all held-out tasks, in their original order."""
        return self._training, self._held_out

    def replace_tasks(self, training: Sequence[Task], held_out: Sequence[Task]) -> None:
        """Replace both lists, such as by a selection of them."""
        self._training, self._held_out = training, held_out
        self._order.cache_clear()

    def task(self, index: int) -> Task:
        """Return training task `index`; every epoch has another order."""
        epoch, place = divmod(index, len(self._training))
        return self._training[self._order(epoch)[place]]

    def held_out(self, count: int) -> Sequence[Task]:
        """Return the first `count` held-out tasks, in their original order."""
        return self._held_out[:count]

    def _shuffle(self, epoch: int) -> list[int]:
        """Return the shuffled order of an epoch: positions of training tasks."""
        order = list(range(len(self._training)))
        derive_random(self._seed, "order", epoch).shuffle(order)
        return order
