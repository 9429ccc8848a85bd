"""Curriculum that mixes the source's tasks with tasks generated from the results of earlier ones.

    failed and solved tasks → generator → gates → a bounded pool → a fraction of the groups

The generator is a hook for a custom function. A generated task needs the data that its reward requires; a gate can
check that.

Note:
    Without a gate, the hardest generated tasks are the broken ones. Gates are separate components, and the number of
    tasks that each rejects is logged.
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
from whetstone.trajectory_json import decode_task, encode_task

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


class GeneratedTasks:
    """Curriculum that mixes the source's tasks with generated ones (WebRL, self-play).

    With a fraction of 0, only the source's tasks are used.

    Sources: WebRL 2024, arXiv:2411.02337 (from failures, with gates); 2605.22217 (gates decide whether self-play is
    stable).

    Args:
        generator: `package.module:function`, (outcome of a step, random) → tasks; called after every step.
        gates: `package.module:function` each, task → whether it is accepted, called in this order.
        generated_fraction: Fraction of groups whose task is generated, once there are any.
        capacity: Maximum number of stored tasks; the oldest are removed first.
    """

    def __init__(
        self, *, generator: str, gates: Sequence[str] = (), generated_fraction: float = 0.5, capacity: int = 1000
    ) -> None:
        if not 0 <= generated_fraction <= 1:
            raise OptionError("generated_fraction", f"must be 0 to 1, got {generated_fraction:g}")
        if capacity < 1:
            raise OptionError("capacity", f"must be 1 or more, got {capacity}")
        self.generator: Callable[[StepOutcome, Random], Sequence[Task]] = find_part("generator", generator, {})
        self.gates: dict[str, Callable[[Task], bool]] = {name: find_part("gate", name, {}) for name in gates}
        self.generated_fraction, self.capacity = generated_fraction, capacity
        self.pool: list[Task] = []
        self.turned_away = dict.fromkeys(self.gates, 0)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int | Task:
        """Return a generated task, or the next index of the source; see `Curriculum`."""
        return draw.choice(self.pool) if self.pool and draw.random() < self.generated_fraction else first + number

    def observe(self, outcome: StepOutcome, /) -> None:
        """Generate tasks from the outcome of a step and store accepted ones.

        See `Stateful`.

        Raises:
            TaskError: If a generated task cannot be stored as JSON.
        """
        known = {task.id for task in self.pool}
        for task in self.generator(outcome, outcome.draw):
            try:
                orjson.dumps(encode_task(task))  # the journal and checkpoints contain it
            except TypeError as error:
                raise TaskError(f"generated task {task.id}: the task cannot be stored as JSON: {error}") from None
            if task.id not in known and self._enters(task):
                known.add(task.id)
                self.pool.append(task)
        del self.pool[: -self.capacity]

    def _enters(self, task: Task) -> bool:
        """Return whether all gates accept a task; count a rejection."""
        for name, gate in self.gates.items():
            if not gate(task):
                self.turned_away[name] += 1
                return False
        return True

    def state(self) -> dict[str, Any]:
        """Return the stored tasks and rejections for a checkpoint; see `Stateful`."""
        return {"pool": [encode_task(task) for task in self.pool], "turned_away": self.turned_away}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the stored tasks and rejections of a checkpoint; see `Stateful`."""
        self.pool = [decode_task(row) for row in state["pool"]]
        self.turned_away |= state["turned_away"]

    def metrics(self) -> dict[str, float]:
        """Return the number of stored (`made`) and of rejected (`turned_away`) tasks."""
        return {"made": float(len(self.pool)), "turned_away": float(sum(self.turned_away.values()))}
