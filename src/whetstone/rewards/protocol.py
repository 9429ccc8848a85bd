"""The seam of the rewards room: what a trajectory was worth, in named parts."""

from __future__ import annotations

from typing import Protocol

from whetstone.trajectory import Score, Task, Trajectory


class Reward(Protocol):
    """Any async function of a finished trajectory and its task.

    It raises where it cannot tell (a judge is down): the trajectory is then marked invalid and leaves
    the statistics. A failure is never a reward of 0.
    """

    async def __call__(self, trajectory: Trajectory, task: Task, /) -> Score:
        """The score of `trajectory`."""
        ...
