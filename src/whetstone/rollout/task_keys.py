"""Which tasks are the same to a part that remembers? Those of one id, or of one tag."""

from __future__ import annotations

from whetstone.tasks import tag_of
from whetstone.trajectory import Group, Task, Trajectory

_FROM_ELSEWHERE = frozenset({"revised", "started_later"})
"""Marks of trajectories that say nothing of how the policy does a task from its beginning."""


def key_of(task: Task, by: str) -> str:
    """What a task counts as: its id for `task`, else its tag of this name.

    Raises:
        TaskError: It has no such tag.
    """
    return task.id if by == "task" else tag_of(task, by)


def own(group: Group) -> list[Trajectory]:
    """The trajectories of a group that say how the policy does its task."""
    return [t for t in group.counted if t.provenance.is_fresh and not _FROM_ELSEWHERE & set(t.marks)]
