"""Reward interface: a function of a trajectory and its task that returns a score with named components."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from whetstone.capabilities import implements_protocol
from whetstone.tools.protocol import HasClose
from whetstone.trajectory import Score, Task, Trajectory


class Reward(Protocol):
    """Reward function of a finished trajectory and its task; it must be reproducible.

    A recipe may name a plain function or an async one.

    If the score cannot be determined (a judge is down), a reward returns `Score.unknown(why)` or raises. The trajectory
    is then marked invalid and excluded from the statistics. A failure is never a reward of 0.

    A reward that uses other rewards has keyword arguments of type `Reward`; a recipe names them. The protocols of
    `OPTIONAL` define optional attributes.
    """

    async def __call__(self, trajectory: Trajectory, task: Task, /) -> Score:
        """Return the score of a finished trajectory of a task."""
        ...


@runtime_checkable
class GroupReward(Protocol):
    """Reward that also depends on the other trajectories of the group, such as a win rate."""

    async def compared(self, trajectories: Sequence[Trajectory], task: Task, /) -> Sequence[Score]:
        """Score the trajectories of one group in comparison with each other.

        Called when all episodes of the group have ended. Each trajectory already has the score that the reward returned
        without the group, and none is invalid.

        Returns:
            One score per trajectory, in the same order.
        """
        ...


@runtime_checkable
class Provides(Protocol):
    """Component that declares the additional columns of its results, so that a recipe can be validated before a run.

    A function declares them with the decorator `provides`.
    """

    provides: Collection[str]
    """Names of the additional columns; a strategy with `forks` starts episodes in the middle of others."""


@runtime_checkable
class NamesTools(Protocol):
    """Reward for the use of certain tools, which the environment must then have."""

    tools: Collection[str] | None
    """Names of the tools; None: all tools."""


@runtime_checkable
class NeedsPrivate(Protocol):
    """Reward that requires private data of the task. A function declares it with the decorator `needs_private`."""

    private: Collection[str]
    """Required keys of `Task.private`."""


@runtime_checkable
class ChecksTask(Protocol):
    """Reward that does not support every task; it checks the first task before a run."""

    def check(self, task: Task, /) -> None:
        """Check that the reward supports a task.

        Raises:
            TaskError: If the reward does not support the task.
        """
        ...


OPTIONAL = (GroupReward, Provides, NamesTools, NeedsPrivate, ChecksTask, HasClose)
"""Optional protocols of a reward. A reward may also be `Stateful`: its state is updated after each step."""

Function = TypeVar("Function", bound=Callable[..., Any])


def provides(*names: str) -> Callable[[Function], Function]:
    """Declare the additional columns of a reward function's scores; a decorator.

    A recipe whose estimator requires other columns is refused before a run.

    Args:
        names: `process_rewards` for `Score.turns`; names of `Score.signals`, one number per turn; names of
            `Score.parts`, one number per trajectory. Estimators read the columns by these names.
    """

    def declare(function: Function) -> Function:
        function.provides = frozenset(names)  # type: ignore[attr-defined]
        return function

    return declare


def needs_private(*keys: str) -> Callable[[Function], Function]:
    """Declare the keys of `Task.private` that a reward function reads; a decorator.

    A task source without these keys is refused before a run.
    """

    def declare(function: Function) -> Function:
        function.private = frozenset(keys)  # type: ignore[attr-defined]
        return function

    return declare


def required_private_keys(reward: Callable[..., Any]) -> frozenset[str]:
    """Return the keys of `Task.private` that a reward declares to read.

    The result is empty without a declaration.
    """
    function = reward.func if isinstance(reward, functools.partial) else reward
    return frozenset(function.private) if implements_protocol(function, NeedsPrivate) else frozenset()


def provided_columns(reward: Callable[..., Any]) -> frozenset[str]:
    """Return the additional columns that a reward declares to provide.

    The result is empty without a declaration.
    """
    function = reward.func if isinstance(reward, functools.partial) else reward
    return frozenset(function.provides) if implements_protocol(function, Provides) else frozenset()


async def close_reward(reward: object) -> None:
    """Close a reward if it has a `close` method, sync or async."""
    if implements_protocol(reward, HasClose):
        closed = reward.close()
        if closed is not None:
            await closed
