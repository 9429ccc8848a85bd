"""Keys by which stateful components group tasks: the task id, or a tag."""

from __future__ import annotations

from whetstone.tasks import get_tag
from whetstone.trajectory import Group, Task, Trajectory

_FROM_ELSEWHERE = frozenset({"revised", "started_later"})
"""Marks of trajectories that do not measure how the policy performs on a task from its start."""


def task_key(task: Task, by: str) -> str:
    """Return the statistics key of a task: its id if `by` is `task`, else its tag with the name `by`.

    Raises:
        TaskError: If the task has no such tag.
    """
    return task.id if by == "task" else get_tag(task, by)


def on_policy_trajectories(group: Group) -> list[Trajectory]:
    """Return the trajectories of a group that measure how the current policy performs on its task.

    Replayed, revised and removed trajectories, and those that started after the reset state, are left out.
    """
    return [t for t in group.counted if t.provenance.is_fresh and not _FROM_ELSEWHERE & set(t.marks)]
