"""Tasks that were made from those before, behind gates, among the source's own.

    what failed, what was solved → generator → gates → a pool, bounded → a share of the groups

The generator is a hook: yours, and those to come. A made task needs what a reward needs to judge it; a gate is where
that is checked.

Easy to get wrong: without a gate the hardest tasks to make are the broken ones. Gates are parts of their own, and how
many each turned away is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import orjson

from whetstone.errors import TaskError
from whetstone.plugins import OptionError, find_part
from whetstone.tasks.protocol import Source
from whetstone.trajectory import Task
from whetstone.trajectory_json import decoded_task, encoded_task

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


class GeneratedTasks:
    """The source's tasks, and a share of made ones (WebRL's and self-play's hook). A share of 0 is the source alone.

    Sources: WebRL 2024, arXiv:2411.02337 (from failures, behind gates); 2605.22217 (gates decide
    whether self-play is stable).

    Args:
        generator: `package.module:function`, (outcome of a step, random) → tasks; called after every step.
        gates: `package.module:function` each, task → whether it may enter, asked in this order.
        generated_fraction: Fraction of groups whose task is generated, once there are any.
        capacity: Made tasks kept; the oldest go first.
    """

    def __init__(
        self, *, generator: str, gates: Sequence[str] = (), generated_fraction: float = 0.5, capacity: int = 1000
    ) -> None:
        if not 0 <= generated_fraction <= 1:
            raise OptionError("generated_fraction", f"0 to 1, got {generated_fraction:g}")
        if capacity < 1:
            raise OptionError("capacity", f"one task or more, got {capacity}")
        self.generator: Callable[[StepOutcome, Random], Sequence[Task]] = find_part("generator", generator, {})
        self.gates: dict[str, Callable[[Task], bool]] = {name: find_part("gate", name, {}) for name in gates}
        self.generated_fraction, self.capacity = generated_fraction, capacity
        self.pool: list[Task] = []
        self.turned_away = dict.fromkeys(self.gates, 0)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int | Task:
        """See `Curriculum`."""
        return draw.choice(self.pool) if self.pool and draw.random() < self.generated_fraction else first + number

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        known = {task.id for task in self.pool}
        for task in self.generator(heard, heard.draw):
            try:
                orjson.dumps(encoded_task(task))  # it is kept in the journal and in checkpoints
            except TypeError as error:
                raise TaskError(f"made task {task.id}: cannot be kept as JSON: {error}") from None
            if task.id not in known and self._enters(task):
                known.add(task.id)
                self.pool.append(task)
        del self.pool[: -self.capacity]

    def _enters(self, task: Task) -> bool:
        for name, gate in self.gates.items():
            if not gate(task):
                self.turned_away[name] += 1
                return False
        return True

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"pool": [encoded_task(task) for task in self.pool], "turned_away": self.turned_away}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.pool = [decoded_task(row) for row in state["pool"]]
        self.turned_away |= state["turned_away"]

    def metrics(self) -> dict[str, float]:
        """How many there are, and how many gates turned away."""
        return {"made": float(len(self.pool)), "turned_away": float(sum(self.turned_away.values()))}
