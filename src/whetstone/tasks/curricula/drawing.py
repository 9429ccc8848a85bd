"""A training task of some kind, by chance, the same for the same draw."""

from __future__ import annotations

from random import Random

from whetstone.errors import TaskError
from whetstone.tasks.protocol import Source
from whetstone.trajectory import Task

_RANGE = 2**20
"""Tasks drawn among; a source that repeats itself sooner is drawn from evenly all the same."""
_TRIES = 20_000


def drawn(source: Source, first: int, draw: Random, by: str, value: str) -> int:
    """The index of a task with this value of a tag, at or behind `first`.

    Raises:
        TaskError: Of many tries none does.
    """
    seen = set()
    for _ in range(_TRIES):
        index = first + draw.randrange(_RANGE)
        found = tag_of(source.task(index), by)
        if found == value:
            return index
        seen.add(found)
    raise TaskError(f'of {_TRIES} training tasks none is of {by} "{value}"; there are {", ".join(sorted(seen)[:9])}')


def tag_of(task: Task, by: str) -> str:
    """The tag of a task.

    Raises:
        TaskError: It has none of this name.
    """
    if by not in task.tags:
        raise TaskError(f'task {task.id}: has no tag "{by}"; it has {", ".join(sorted(task.tags)) or "none"}')
    return task.tags[by]
