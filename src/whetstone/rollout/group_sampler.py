"""Sampling interface of one group: samples and forks episodes with the hooks of the recipe's method.

The group creates its requests. Each request is complete: the player needs nothing else from the group.

Note:
    An episode can fork from a running one. They share the turns that were finished at the time of the request; if the
    parent is then played again, because a server failed, they share nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from whetstone.environments.protocol import SeatRequest
from whetstone.rollout.episode_inputs import EpisodeHooks, Fork
from whetstone.rollout.method import Method
from whetstone.rollout.protocol import (
    ContextTransform,
    EpisodeKey,
    GroupBudget,
    Plan,
    Running,
    Siblings,
    Splice,
    Start,
    StartPrefix,
)
from whetstone.seeding import derive_random, derive_seed
from whetstone.trajectory import Costs, EndReason, RemovalScope, Task, Trajectory, Turn


@dataclass(slots=True)
class RunningEpisode:
    """See `Running`."""

    id: str
    turns: list[Turn] = field(default_factory=list)
    environment_seed: int = 0
    """Seed of its environment."""
    snapshots: dict[int, Any] = field(default_factory=dict)
    task: asyncio.Task[Trajectory] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def turn(self, number: int) -> Turn | None:
        """See `Running.turn`."""
        assert self.task is not None
        while len(self.turns) <= number and not self.task.done():
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait([changed, self.task], return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        if len(self.turns) > number:
            return self.turns[number]
        turns = (await self.task).turns
        return turns[number] if len(turns) > number else None

    async def trajectory(self) -> Trajectory:
        """See `Running.trajectory`."""
        assert self.task is not None
        return await asyncio.shield(self.task)

    @property
    def over(self) -> tuple[Turn, ...]:
        """Return its turns so far."""
        assert self.task is not None
        return self.task.result().turns if self.task.done() else tuple(self.turns)

    def observe(self, turn: Turn) -> None:
        """Add a finished turn."""
        self.turns.append(turn)
        self._changed.set()

    def forget(self) -> None:
        """Discard the turns: the episode is played again from its start."""
        self.turns.clear()


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Request of a group for an episode, with everything that is needed to play it."""

    id: str
    task: Task
    seed: int
    hooks: EpisodeHooks
    begins: Callable[[], Awaitable[Fork | None]]
    """Function that returns the start of the episode; None: the reset state. Awaited when the episode has its slot,
    since an expert may have to be played first, in that slot."""
    max_turns: int
    """Number of turns after which it ends or pauses."""
    whole_turns: int
    """Number of turns after which an episode of the group ends."""
    parent: str | None = None
    """Id of the episode it forks from."""
    shared: tuple[Turn, ...] = ()
    """Turns shared with the parent."""
    greedy: bool = False
    seat: SeatRequest | None = None
    """Its seat in a game of several players; None: the policy is the only player."""
    hinted: bool = False
    """Whether it has a context transform that its siblings do not have."""

    @property
    def role(self) -> str:
        """Return the name of its role; empty if the policy is the only player."""
        return self.seat.role if self.seat is not None else ""

    def only_pauses(self, trajectory: Trajectory) -> bool:
        """Return whether its end is a pause: the episode is continued from there, so it is not scored."""
        return trajectory.ended is EndReason.MAX_TURNS and len(trajectory.turns) < self.whole_turns

    def placed(self, trajectory: Trajectory, fork: Fork | None) -> Trajectory:
        """Return the trajectory with its parent, role and marks."""
        count = len(self.shared)
        marks = trajectory.marks
        if self.parent is not None and trajectory.turns[:count] == self.shared:
            trajectory = replace(trajectory, parent=self.parent, fork_turn=count)
        elif fork is not None and self.parent is None and "not_forked" not in marks:
            marks = (*marks, "started_later")
        if self.hinted:
            marks = (*marks, "hinted")
        return replace(trajectory, marks=marks, role=self.role)


EpisodePlayer = Callable[[EpisodeRequest], Awaitable[Trajectory]]
"""Plays a requested episode when a slot is free: the trajectory, scored unless it only pauses."""


class GroupSampler:
    """Sampler of one group; see `Roller`.

    Args:
        play: Plays its episodes.
        method: Hooks for each of them.
        max_turns: Maximum number of turns per episode, unless the recipe allocates another one.
        encode: Tokenizes a text.
        demonstrate: Plays the expert's episode, for a start state that needs one.
        group_size: Number of episodes, unless the recipe allocates another one.
    """

    def __init__(
        self,
        plan: Plan,
        play: EpisodePlayer,
        *,
        method: Method,
        max_turns: int,
        encode: Callable[[str], tuple[int, ...]],
        demonstrate: Callable[[], Awaitable[Trajectory]],
        group_size: int = 1,
    ) -> None:
        self.plan, self.method = plan, method
        self.occasion = EpisodeKey(plan.task, plan.seed, plan.step, 0, group_size)
        allowance = method.allocate(self.occasion) if method.allocate is not None else GroupBudget()
        self.max_turns = max_turns if allowance.max_turns is None else allowance.max_turns
        """See `Roller.max_turns`."""
        self.costs = Costs()
        """Costs of all its episodes, including discarded ones."""
        self._play, self._encode, self._demonstrate = play, encode, demonstrate
        self._group_size = allowance.group_size
        self._siblings = Siblings()
        self._running: dict[str, RunningEpisode] = {}
        self._start: asyncio.Task[StartPrefix | None] | None = None

    def samples(self, usual: int) -> int:
        """See `Roller.samples`."""
        size = usual if self._group_size is None else self._group_size
        self.occasion = replace(self.occasion, group_size=size)
        return size

    def written(self, text: str) -> tuple[int, ...]:
        """See `Roller.written`."""
        return self._encode(text)

    def random(self, index: int) -> Random:
        """See `Roller.random`."""
        return derive_random(self.plan.seed, self.plan.task.id, "strategy", index)

    async def sample(
        self,
        task: Task,
        *,
        index: int,
        greedy: bool = False,
        view: ContextTransform | None = None,
        max_turns: int | None = None,
        seat: str = "",
        table: int | None = 0,
    ) -> Trajectory:
        """See `Roller.sample`."""
        begun = self._begin(index, greedy=greedy, view=view, max_turns=max_turns, seat=seat, table=table)
        return await begun.trajectory()

    async def fork(
        self,
        task: Task,
        parent: Trajectory,
        *,
        turns: int,
        index: int,
        splice: Splice | None = None,
        max_turns: int | None = None,
    ) -> Trajectory:
        """See `Roller.fork`."""
        begun = self._begin(
            index, parent=self._running[parent.id], shared=parent.turns[:turns], splice=splice, max_turns=max_turns
        )
        return await begun.trajectory()

    def begin(self, task: Task, *, index: int, parent: Running | None = None, turns: int = 0) -> RunningEpisode:
        """See `Roller.begin`."""
        if parent is None:
            return self._begin(index)
        assert isinstance(parent, RunningEpisode)
        return self._begin(index, parent=parent, shared=parent.over[:turns])

    def _begin(
        self,
        index: int,
        *,
        parent: RunningEpisode | None = None,
        shared: tuple[Turn, ...] = (),
        splice: Splice | None = None,
        greedy: bool = False,
        view: ContextTransform | None = None,
        max_turns: int | None = None,
        seat: str = "",
        table: int | None = 0,
    ) -> RunningEpisode:
        running = RunningEpisode(f"{self.plan.name}{self.plan.task.id}#{index}")
        request = EpisodeRequest(
            running.id,
            self.plan.task,
            derive_seed(self.plan.seed, self.plan.task.id, index),
            self._hooks(running, index, view),
            partial(self._started, running, index)
            if parent is None
            else partial(_parted, running, parent, shared, splice),
            max_turns=self.max_turns if max_turns is None else min(self.max_turns, max_turns),
            whole_turns=self.max_turns,
            parent=parent.id if parent is not None else None,
            shared=shared,
            greedy=greedy,
            seat=self._seat(seat, index, table) if seat else None,
            hinted=view is not None,
        )
        self._running[running.id] = running
        running.task = asyncio.ensure_future(self._played(request))
        return running

    async def _played(self, request: EpisodeRequest) -> Trajectory:
        try:
            trajectory = await self._play(request)
        finally:
            self.costs += request.hooks.costs
        if request.only_pauses(trajectory):
            return trajectory
        self._siblings.ended.append((len(trajectory.turns), trajectory.solved))
        return replace(trajectory, greedy=True, removal=RemovalScope.BEFORE_BASELINE) if request.greedy else trajectory

    async def close(self) -> None:
        """Cancel all its episodes."""
        tasks: list[asyncio.Task[Any] | None] = [self._start, *(running.task for running in self._running.values())]
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def demonstration(self, task: Task) -> tuple[Trajectory, int]:
        """See `Demonstrator.demonstration`."""
        return await self._demonstrate(), self._environment_seed(0)

    def _seat(self, role: str, index: int, table: int | None) -> SeatRequest:
        """Return the seat of a role in one of the games of the group, or in a separate game."""
        seed = derive_seed(self.plan.seed, self.plan.task.id, "table", index if table is None else table)
        return SeatRequest(role, f"{self.plan.name}{self.plan.task.id}/{seed}" if table is not None else "", seed)

    def _hooks(self, running: RunningEpisode, index: int, view: ContextTransform | None) -> EpisodeHooks:
        """Return the hooks of an episode."""
        method = self.method
        return EpisodeHooks(
            occasion=replace(self.occasion, index=index),
            context_transforms=(*(method.context_transforms or {}).values(), *([view] if view is not None else [])),
            stops=tuple((method.stops or {}).items()),
            rewrites=tuple((method.rewrites or {}).values()),
            overflow=method.overflow,
            siblings=self._siblings,
            on_turn=running.observe,
            restarted=running.forget,
            snapshots=running.snapshots,
        )

    async def _started(self, running: RunningEpisode, index: int) -> Fork | None:
        """Return the common start of the group's episodes; None if there is none."""
        prefix = await self._prefix()
        running.environment_seed = prefix.environment_seed if prefix is not None else self._environment_seed(index)
        return None if prefix is None else Fork(prefix.turns, prefix.environment_seed)

    async def _prefix(self) -> StartPrefix | None:
        if self.method.start is None:
            return None
        if self._start is None:
            self._start = asyncio.ensure_future(self._compute_prefix(self.method.start))
        return await asyncio.shield(self._start)

    async def _compute_prefix(self, start: Start) -> StartPrefix | None:
        prefix = await start(self.occasion, self)
        return prefix if prefix is not None and prefix.turns else None

    def _environment_seed(self, index: int) -> int:
        """Return the seed of the environment of an episode that starts from the reset state."""
        return derive_seed(derive_seed(self.plan.seed, self.plan.task.id, index), "environment")


async def _parted(
    running: RunningEpisode, parent: RunningEpisode, shared: tuple[Turn, ...], splice: Splice | None
) -> Fork:
    """Return the point of a fork: after the shared turns, in the parent's environment."""
    running.environment_seed = parent.environment_seed
    return Fork(shared, parent.environment_seed, splice, parent.snapshots.get(len(shared)))
