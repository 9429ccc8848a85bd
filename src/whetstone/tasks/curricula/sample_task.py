"""Sampling of a training task that has a certain tag."""

from __future__ import annotations

from random import Random

from whetstone.errors import TaskError
from whetstone.tasks.protocol import Source
from whetstone.trajectory import Task

_RANGE = 2**20
"""Range of sampled indices; a source that repeats earlier is still sampled uniformly."""
_TRIES = 20_000
"""Maximum number of sampled tasks."""


def sample_task(source: Source, first: int, draw: Random, by: str, value: str) -> int:
    """Return the index of a random training task with a value of a tag.

    Args:
        source: Task source.
        first: First index that can be selected.
        by: Name of the tag.
        value: Required value of the tag.

    Raises:
        TaskError: If none of `_TRIES` sampled tasks has the value.
    """
    seen = set()
    for _ in range(_TRIES):
        index = first + draw.randrange(_RANGE)
        tag = get_tag(source.task(index), by)
        if tag == value:
            return index
        seen.add(tag)
    raise TaskError(
        f'none of {_TRIES} sampled training tasks has {by} "{value}"; sampled values are {", ".join(sorted(seen)[:9])}'
    )


def get_tag(task: Task, by: str) -> str:
    """Return the value of a tag of a task.

    Raises:
        TaskError: If the task has no tag with this name.
    """
    if by not in task.tags:
        raise TaskError(
            f'task {task.id}: the task has no tag "{by}"; its tags are {", ".join(sorted(task.tags)) or "none"}'
        )
    return task.tags[by]
