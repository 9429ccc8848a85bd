"""What may a strategy do with its group? Sample and fork, with everything the recipe's method does around an episode.

The group owns its requests. Each is whole: whoever plays it is told all there is to know, and asks the group nothing.

Easy to get wrong: an episode may fork from one that still runs. What they share is what was over when it was asked for;
where the other is then played again, because a server failed, they share nothing.
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
    Allowance,
    ContextTransform,
    EpisodeKey,
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
    world: int = 0
    """The seed of its environment."""
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
        """Its turns so far."""
        assert self.task is not None
        return self.task.result().turns if self.task.done() else tuple(self.turns)

    def observe(self, turn: Turn) -> None:
        """One more turn is over."""
        self.turns.append(turn)
        self._changed.set()

    def forget(self) -> None:
        """It is played from its start."""
        self.turns.clear()


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """An episode a group wants, with all that is needed to play it."""

    id: str
    task: Task
    seed: int
    hooks: EpisodeHooks
    begins: Callable[[], Awaitable[Fork | None]]
    """Where it begins, None at the beginning. Awaited when the episode has its place: an expert may have to be played
    first, in that place."""
    max_turns: int
    """After which it ends, or pauses."""
    whole_turns: int
    """After which an episode of the group is over."""
    parent: str | None = None
    """The episode it parts from."""
    shared: tuple[Turn, ...] = ()
    """What it has in common with that."""
    greedy: bool = False
    seat: SeatRequest | None = None
    """Its seat in a game of several players; None: the policy is the only player."""
    hinted: bool = False
    """Whether it reads what its siblings do not."""

    @property
    def role(self) -> str:
        """Name of its seat; empty if the policy is the only player."""
        return self.seat.role if self.seat is not None else ""

    def only_pauses(self, trajectory: Trajectory) -> bool:
        """Whether its end is a pause: somebody goes on from there, so it is not scored."""
        return trajectory.ended is EndReason.MAX_TURNS and len(trajectory.turns) < self.whole_turns

    def placed(self, trajectory: Trajectory, fork: Fork | None) -> Trajectory:
        """The trajectory with what is known of where it parted."""
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
"""Plays what is asked for when there is a place for it: the trajectory, scored unless it only pauses."""


class GroupSampler:
    """The roller of one group; see `Roller`.

    Args:
        play: Plays its episodes.
        method: What is done around each of them.
        max_turns: An episode may have, unless the recipe allocates otherwise.
        encode: A text as the policy's tokens.
        demonstrate: Plays the expert's episode, for a start that asks for one.
        group_size: How many episodes it is to have, unless the recipe allocates otherwise.
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
        allowance = method.allocate(self.occasion) if method.allocate is not None else Allowance()
        self.max_turns = max_turns if allowance.max_turns is None else allowance.max_turns
        """See `Roller.max_turns`."""
        self.costs = Costs()
        """Of all its episodes, discarded ones among them."""
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
        table: int = 0,
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
        table: int = 0,
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
            seat=self._seat(seat, table) if seat else None,
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
        """Nothing of it goes on."""
        tasks: list[asyncio.Task[Any] | None] = [self._start, *(running.task for running in self._running.values())]
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def demonstration(self, task: Task) -> tuple[Trajectory, int]:
        """See `Demonstrator.demonstration`."""
        return await self._demonstrate(), self._world(0)

    def _seat(self, role: str, table: int) -> SeatRequest:
        """Return the seat of a role in one of the games of the group."""
        seed = derive_seed(self.plan.seed, self.plan.task.id, "table", table)
        return SeatRequest(role, f"{self.plan.name}{self.plan.task.id}/{seed}", seed)

    def _hooks(self, running: RunningEpisode, index: int, view: ContextTransform | None) -> EpisodeHooks:
        """What is done around an episode."""
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
        """Behind what all of the group begin behind, where there is such a thing."""
        prefix = await self._prefix()
        running.world = prefix.world if prefix is not None else self._world(index)
        return None if prefix is None else Fork(prefix.turns, prefix.world)

    async def _prefix(self) -> StartPrefix | None:
        if self.method.start is None:
            return None
        if self._start is None:
            self._start = asyncio.ensure_future(self._found(self.method.start))
        return await asyncio.shield(self._start)

    async def _found(self, start: Start) -> StartPrefix | None:
        prefix = await start(self.occasion, self)
        return prefix if prefix is not None and prefix.turns else None

    def _world(self, index: int) -> int:
        """The seed of the environment of an episode that begins anew."""
        return derive_seed(derive_seed(self.plan.seed, self.plan.task.id, index), "environment")


async def _parted(
    running: RunningEpisode, parent: RunningEpisode, shared: tuple[Turn, ...], splice: Splice | None
) -> Fork:
    """Behind what it shares with another, in its world."""
    running.world = parent.world
    return Fork(shared, parent.world, splice, parent.snapshots.get(len(shared)))
