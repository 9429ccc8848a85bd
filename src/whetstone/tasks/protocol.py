"""Interfaces of task sources, curricula and experts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from whetstone.chat import Message, ToolSpec
from whetstone.trajectory import Task


@runtime_checkable
class Source(Protocol):
    """An infinite sequence of training tasks, and held-out tasks that never occur in it.

    `OPTIONAL` lists its optional protocols.
    """

    def task(self, index: int) -> Task:
        """Return training task `index`, from 0.

        The same index is the same task, so that a run can resume.
        """
        ...

    def held_out(self, count: int) -> Sequence[Task]:
        """Return the first `count` held-out tasks, or fewer if there are not enough."""
        ...


class Curriculum(Protocol):
    """Selects the next task. Optional protocols: see `rollout/optional_protocols.py`."""

    def choose(self, source: Source, first: int, number: int, step: int, rng: Random, /) -> int | Task:
        """Return the task of group `number`: an index of the source, or a generated task.

        Args:
            first: First index that can be selected; tasks before it were demonstrated.
            number: Number of groups planned before it.
            step: Number of updates so far.
            rng: Random generator, the same for the same group.
        """
        ...


@runtime_checkable
class Expert(Protocol):
    """A source that can demonstrate the solution of its tasks."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the expert's next message, given the conversation and the available tools."""
        ...


@runtime_checkable
class Finite(Protocol):
    """A source with a finite number of training tasks, which repeat."""

    training_tasks: int
    """Number of training tasks; a component that requires more is refused."""


@runtime_checkable
class ReportsSkipped(Protocol):
    """A source that excludes invalid tasks."""

    skipped: int
    """Number of excluded tasks; reported to the user."""


OPTIONAL = (Expert, Finite, ReportsSkipped)
"""Optional protocols of a task source."""
