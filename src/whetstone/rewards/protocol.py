"""The seam of the rewards room: what a trajectory was worth, in named parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from whetstone.contracts import fulfils
from whetstone.tools.protocol import Closes
from whetstone.trajectory import Score, Task, Trajectory


class Reward(Protocol):
    """Any function of a finished trajectory and its task, and of nothing else: computed again, it says the same. A
    recipe may name a plain function as well as an async one.

    Where it cannot tell (a judge is down), it says `Score.unknown(why)` or raises: the trajectory is then marked
    invalid and leaves the statistics. A failure is never a reward of 0.

    One that is made of others has keyword arguments of type `Reward`; a recipe names them. What it may have besides,
    the protocols of `OPTIONAL` say.
    """

    async def __call__(self, trajectory: Trajectory, task: Task, /) -> Score:
        """The score of `trajectory`."""
        ...


@runtime_checkable
class Compares(Protocol):
    """A reward that depends on the other trajectories of the group as well."""

    async def compared(self, trajectories: Sequence[Trajectory], task: Task, /) -> Sequence[Score]:
        """The scores of trajectories of one task beside each other. Each has the score it was given by itself, and none
        is invalid."""
        ...


@runtime_checkable
class Provides(Protocol):
    """It says what its results carry beside what all of them do, so that a recipe can be checked before anything runs.
    A function says so by `provides`."""

    provides: Collection[str]
    """By name; `forks` of a strategy: it begins episodes in the middle of others."""


@runtime_checkable
class NamesTools(Protocol):
    """A reward for the use of certain tools, which then have to be there."""

    tools: Collection[str] | None
    """Their names; None: any."""


@runtime_checkable
class NeedsPrivate(Protocol):
    """A reward that reads what tasks keep from the model, and cannot tell without it. A function says so by
    `needs_private`."""

    private: Collection[str]
    """Keys of `Task.private`."""


@runtime_checkable
class ChecksTask(Protocol):
    """A reward that cannot judge every task; it is shown the first before anything runs."""

    def check(self, task: Task, /) -> None:
        """See whether the task has what it takes.

        Raises:
            TaskError: It has not.
        """
        ...


OPTIONAL = (Compares, Provides, NamesTools, NeedsPrivate, ChecksTask, Closes)
"""What a reward may have; and it may learn from how steps went (`Remembers`)."""

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


def needs_private(*keys: str) -> Callable[[Function], Function]:
    """Say what a reward reads of a task's private data, so that a source without it is refused before anything runs."""

    def said(function: Function) -> Function:
        function.private = frozenset(keys)  # type: ignore[attr-defined]
        return function

    return said


def private_of(reward: Callable[..., Any]) -> frozenset[str]:
    """What a reward says it reads of a task's private data."""
    asked = reward.func if isinstance(reward, functools.partial) else reward
    return frozenset(asked.private) if fulfils(asked, NeedsPrivate) else frozenset()


def provided_by(reward: Callable[..., Any]) -> frozenset[str]:
    """What a reward says its scores carry."""
    asked = reward.func if isinstance(reward, functools.partial) else reward
    return frozenset(asked.provides) if fulfils(asked, Provides) else frozenset()


async def let_go(reward: object) -> None:
    """Close a reward that holds something."""
    if fulfils(reward, Closes):
        closed = reward.close()
        if closed is not None:
            await closed
