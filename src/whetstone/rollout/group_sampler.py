"""What may a strategy do with its group? Sample and fork, with everything the recipe's method does around an episode.

Easy to get wrong: an episode may fork from one that still runs. What they share is what was over when it was asked for;
where the other is then played again, because a server failed, they share nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from whetstone.chat import Chat
from whetstone.rollout.method import Method
from whetstone.rollout.protocol import Allowance, EpisodeKey, Plan, Running, Siblings, Splice, StartPrefix, View
from whetstone.rollout.runner import EpisodeHooks, Fork, Limits
from whetstone.seeding import derive_random, derive_seed
from whetstone.trajectory import Costs, Task, Trajectory, Turn


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
    """An episode somebody wants."""

    index: int
    running: RunningEpisode
    parent: RunningEpisode | None = None
    shared: tuple[Turn, ...] = ()
    splice: Splice | None = None
    greedy: bool = False
    view: View | None = None
    max_turns: int | None = None
    seat: str = ""
    table: int = 0


class EpisodePlayer(Protocol):
    """Who plays what is asked for."""

    method: Method
    chat: Chat
    limits: Limits

    async def played(self, plan: Plan, asked: EpisodeRequest, group: GroupSampler) -> Trajectory: ...

    async def demonstrated(self, plan: Plan, index: int) -> Trajectory: ...


class GroupSampler:
    """The roller of one group; see `Roller`.

    Args:
        collector: EpisodePlayer its episodes.
        group_size: How many it is to have, unless the recipe allocates otherwise.
    """

    def __init__(self, collector: EpisodePlayer, plan: Plan, group_size: int = 1) -> None:
        self.collector, self.plan = collector, plan
        self.occasion = EpisodeKey(plan.task, plan.seed, plan.step, 0, group_size)
        allocate = collector.method.allocate
        self.allowance = allocate(self.occasion) if allocate is not None else Allowance()
        self.began: float | None = None
        """When its first episode had a place."""
        self.costs = Costs()
        self.siblings = Siblings()
        self._running: dict[str, RunningEpisode] = {}
        self._start: asyncio.Task[StartPrefix | None] | None = None

    def samples(self, usual: int) -> int:
        """See `Roller.samples`."""
        size = usual if self.allowance.group_size is None else self.allowance.group_size
        self.occasion = replace(self.occasion, group_size=size)
        return size

    @property
    def max_turns(self) -> int:
        """See `Roller.max_turns`."""
        most = self.collector.limits.max_turns
        return most if self.allowance.max_turns is None else self.allowance.max_turns

    def written(self, text: str) -> tuple[int, ...]:
        """See `Roller.written`."""
        return self.collector.chat.encode(text)

    def random(self, index: int) -> Random:
        """See `Roller.random`."""
        return derive_random(self.plan.seed, self.plan.task.id, "strategy", index)

    async def sample(
        self,
        task: Task,
        *,
        index: int,
        greedy: bool = False,
        view: View | None = None,
        max_turns: int | None = None,
        seat: str = "",
        table: int = 0,
    ) -> Trajectory:
        """See `Roller.sample`."""
        how = {"greedy": greedy, "view": view, "max_turns": max_turns, "seat": seat, "table": table}
        return await self._begin(index, **how).trajectory()

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

    def _begin(self, index: int, **how: Any) -> RunningEpisode:
        running = RunningEpisode(f"{self.plan.name}{self.plan.task.id}#{index}")
        asked = EpisodeRequest(index, running, **how)
        self._running[running.id] = running
        running.task = asyncio.ensure_future(self.collector.played(self.plan, asked, self))
        return running

    async def close(self) -> None:
        """Nothing of it goes on."""
        tasks: list[asyncio.Task[Any] | None] = [self._start, *(running.task for running in self._running.values())]
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    # ------------------------------------------------------------ for whoever plays

    def task(self, asked: EpisodeRequest) -> Task:
        """The task as an episode of it has it: at a table, it knows which and where."""
        if not asked.seat:
            return self.plan.task
        seed = derive_seed(self.plan.seed, self.plan.task.id, "table", asked.table)
        name = f"{self.plan.name}{self.plan.task.id}/{seed}"
        seated = {"seat": asked.seat, "table": name, "table_seed": seed}
        return replace(self.plan.task, private={**self.plan.task.private, **seated})

    def around(self, asked: EpisodeRequest, method: Method) -> EpisodeHooks:
        """What is done around an episode of it."""
        views = (*(method.views or {}).values(), *([asked.view] if asked.view is not None else []))
        return EpisodeHooks(
            occasion=replace(self.occasion, index=asked.index),
            views=views,
            stops=tuple((method.stops or {}).items()),
            rewrites=tuple((method.rewrites or {}).values()),
            overflow=method.overflow,
            siblings=self.siblings,
            heard=asked.running.observe,
            snapshots=asked.running.snapshots,
        )

    async def fork_of(self, asked: EpisodeRequest) -> Fork | None:
        """Where the episode parts from another, or from where all of the group begin."""
        if asked.parent is not None:
            parent = asked.parent
            asked.running.world = parent.world
            return Fork(asked.shared, parent.world, asked.splice, parent.snapshots.get(len(asked.shared)))
        begun = await self._begun()
        asked.running.world = begun.world if begun is not None else self._world(asked.index)
        return None if begun is None else Fork(begun.turns, begun.world)

    def placed(self, trajectory: Trajectory, asked: EpisodeRequest, fork: Fork | None) -> Trajectory:
        """The trajectory with what is known of where it parted."""
        count = len(asked.shared)
        marks = trajectory.marks
        if asked.parent is not None and trajectory.turns[:count] == asked.shared:
            trajectory = replace(trajectory, parent=asked.parent.id, fork_turn=count)
        elif fork is not None and asked.parent is None and "not_forked" not in marks:
            marks = (*marks, "started_later")
        if asked.view is not None:
            marks = (*marks, "hinted")
        return replace(trajectory, marks=marks, role=asked.seat)

    async def demonstration(self, task: Task) -> tuple[Trajectory, int]:
        """See `Demonstrator.demonstration`."""
        return await self.collector.demonstrated(self.plan, 0), self._world(0)

    async def _begun(self) -> StartPrefix | None:
        start = self.collector.method.start
        if start is None:
            return None
        if self._start is None:
            self._start = asyncio.ensure_future(_started(start, self))
        return await asyncio.shield(self._start)

    def _world(self, index: int) -> int:
        """The seed of the environment of an episode that begins anew."""
        return derive_seed(derive_seed(self.plan.seed, self.plan.task.id, index), "environment")


async def _started(start: Any, group: GroupSampler) -> StartPrefix | None:
    begun: StartPrefix | None = await start(group.occasion, group)
    return begun if begun is not None and begun.turns else None
