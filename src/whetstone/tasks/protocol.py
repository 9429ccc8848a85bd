"""Interfaces of task sources, curricula and experts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from whetstone.chat import Message, ToolSpec
from whetstone.trajectory import Task


@runtime_checkable
class Source(Protocol):
    """Interface of a task source: training tasks without end, and held-out tasks.

    A held-out task never occurs in training. `OPTIONAL` lists the optional protocols of a source.
    """

    def task(self, index: int) -> Task:
        """Return training task `index`, from 0.

        The same index always gives the same task, so that a run can resume.
        """
        ...

    def held_out(self, count: int) -> Sequence[Task]:
        """Return the first `count` held-out tasks, or all if there are fewer."""
        ...


class Curriculum(Protocol):
    """Interface of a curriculum, which selects the task of each group.

    Optional protocols: see `rollout/optional_protocols.py`.
    """

    def choose(self, source: Source, first: int, number: int, step: int, rng: Random, /) -> int | Task:
        """Return the task of group `number`: an index of the source, or a generated task.

        Args:
            source: Task source of the recipe.
            first: First index that can be selected; tasks before it were demonstrated.
            number: Number of groups planned before this one.
            step: Number of updates so far.
            rng: Random generator, the same for the same group.
        """
        ...


@runtime_checkable
class Expert(Protocol):
    """Optional protocol of a source that can demonstrate the solution of its tasks."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the expert's next message of an episode.

        Args:
            task: Task of the episode.
            conversation: Messages so far.
            tools: Tools that are available to the agent.

        Raises:
            TaskError: If the task has no expert.
        """
        ...


@runtime_checkable
class Finite(Protocol):
    """Optional protocol of a source with a finite number of training tasks.

    The tasks repeat.
    """

    training_tasks: int
    """Number of training tasks; a component that requires more is refused."""


@runtime_checkable
class ReportsSkipped(Protocol):
    """Optional protocol of a source that excludes invalid tasks."""

    skipped: int
    """Number of excluded tasks; reported to the user."""


OPTIONAL = (Expert, Finite, ReportsSkipped)
"""Optional protocols of a task source."""
