"""The seam of the tasks room: where tasks come from, and who can show how one is done."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from whetstone.chat import Message, ToolSpec
from whetstone.trajectory import Task


@runtime_checkable
class Source(Protocol):
    """Training tasks without end, and held-out tasks that are never among them.

    One whose tasks come again after a while says how many there are, as `training_tasks`.
    """

    def task(self, index: int) -> Task:
        """Training task number `index`, from 0; the same index is the same task, so a run can resume anywhere."""
        ...

    def held_out(self, count: int) -> Sequence[Task]:
        """The first `count` held-out tasks, fewer where there are not so many."""
        ...


class Curriculum(Protocol):
    """Which task comes next. One that learns from how tasks went also has `observe`, `state` and `load_state`."""

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int | Task:
        """The task of group `number`: an index of the source's, or one that was made.

        Args:
            first: The first of the source's tasks that may be chosen; those in front of it were demonstrated.
            number: Groups planned before it.
            step: Updates made.
            draw: Chance, the same for the same group.
        """
        ...


@runtime_checkable
class Expert(Protocol):
    """A source that can also show how its tasks are done."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """What an expert says next, given everything said so far and the tools on offer."""
        ...
