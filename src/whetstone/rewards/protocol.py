"""The seam of the rewards room: what a trajectory was worth, in named parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from whetstone.trajectory import Score, Task, Trajectory


class Reward(Protocol):
    """Any async function of a finished trajectory and its task.

    It raises where it cannot tell (a judge is down): the trajectory is then marked invalid and leaves
    the statistics. A failure is never a reward of 0.
    """

    async def __call__(self, trajectory: Trajectory, task: Task, /) -> Score:
        """The score of `trajectory`."""
        ...


Function = TypeVar("Function", bound=Callable[..., Any])


def provides(*names: str) -> Callable[[Function], Function]:
    """Say what a reward's scores carry beside their value, so that a recipe can be checked before anything runs.

    Args:
        names: `process_rewards` for `Score.turns`; names of `Score.signals`, one number a turn; names of
            `Score.parts`, one a trajectory. Estimators ask for them by these names.
    """

    def said(function: Function) -> Function:
        function.provides = frozenset(names)  # type: ignore[attr-defined]
        return function

    return said


def provided_by(reward: Callable[..., Any]) -> frozenset[str]:
    """What a reward says its scores carry."""
    named: frozenset[str] = getattr(getattr(reward, "func", reward), "provides", frozenset())
    return named
