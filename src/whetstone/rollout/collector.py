"""How are many episodes run at once? As coroutines, a bounded number of them, each scored as it ends.

    tasks → (a place is free) → strategy → samples → groups, in the order they finish

A group starts only when a place is free and nobody waits for one, so tasks may be endless. An episode that
waits for a tool costs a coroutine; nothing waits for the slowest.

Easy to get wrong: an episode that failed is not an episode that scored 0. Where the ending is not valid, or
the reward cannot tell, there is no score, and the trajectory is removed before any statistic.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace

from whetstone.chat import Chat
from whetstone.environments.protocol import Environment
from whetstone.errors import WhetstoneError
from whetstone.rewards import Reward
from whetstone.rollout.admission import Admission
from whetstone.rollout.protocol import Action, Actor, Moment, Strategy
from whetstone.rollout.runner import Limits, run_episode
from whetstone.rollout.status import RolloutStatus, Watch
from whetstone.seeding import derive_seed
from whetstone.trajectory import EndReason, Group, Removal, Task, Trajectory


@dataclass(slots=True)
class Collector:
    """Everything an episode needs, but the task.

    It is a `Roller`: strategies sample through it.
    """

    environment: Callable[[], Environment]
    """Makes a fresh environment for each episode."""
    actor: Actor
    chat: Chat
    reward: Reward
    limits: Limits
    max_in_flight: int
    """Episodes running at once."""
    seed: int
    """With a task's id and a sample's index it decides the sample's seed; give each step its own."""
    name: str = ""
    """Begins the id of every trajectory, so that ids differ between steps."""
    infrastructure_retries: int = 2
    """How often an episode is played again that a server, sandbox or engine failed; then it is invalid."""
    busy_seconds: Callable[[], float] | None = None
    """For how long the engine has computed in all; for the status alone."""
    _places: asyncio.Semaphore = field(init=False)
    _vacant: asyncio.Event = field(init=False)
    _watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight: one or more, got {self.max_in_flight}")
        self._places = asyncio.Semaphore(self.max_in_flight)
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._watch = Watch()

    async def sample(self, task: Task, *, index: int, again: int = 0) -> Trajectory:
        """See `Roller.sample`.

        Args:
            again: How often the task was sampled before under this index; another number, another episode.
        """
        self._watch.queued += 1
        self._vacant.clear()
        try:
            await self._places.acquire()
        finally:
            self._watch.queued -= 1
        self._see_vacancy()
        try:
            trajectory = await self._played(task, index, again)
        finally:
            self._places.release()
            self._see_vacancy()
        return await self._scored(trajectory, task)

    async def groups(
        self, tasks: Iterable[Task], strategy: Strategy, *, admission: Admission | None = None
    ) -> AsyncIterator[Group]:
        """The group of each task, in the order they finish. `tasks` is read as places become free.

        Args:
            admission: Asked before each group, so that sampling does not run too far ahead of learning.

        Raises:
            WhetstoneError: A task cannot be played at all; those that finished before it were handed on,
                the others are cancelled.
        """
        running: set[asyncio.Task[Group]] = set()
        finished: asyncio.Queue[asyncio.Task[Group] | None] = asyncio.Queue()
        # a strategy may think before it samples; no more groups are open than could all run
        open_groups = asyncio.Semaphore(self.max_in_flight)

        def hand_on(group: asyncio.Task[Group]) -> None:
            running.discard(group)
            open_groups.release()
            finished.put_nowait(group)

        async def feed() -> None:
            seen: Counter[str] = Counter()
            for task in tasks:
                await open_groups.acquire()
                await self._vacant.wait()
                if admission is not None:
                    await admission.enter()
                group = asyncio.ensure_future(strategy(task, _Again(self, seen[task.id])))
                seen[task.id] += 1
                running.add(group)
                group.add_done_callback(hand_on)
                for _ in range(3):  # until its samples have asked for their places
                    await asyncio.sleep(0)

        feeder = asyncio.create_task(feed())
        feeder.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while not (feeder.done() and not running and finished.empty()):
                group = await finished.get()
                if group is not None:
                    yield await group
            await feeder  # raises where the source of the tasks failed
        finally:
            left = [feeder, *running]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def status(self) -> RolloutStatus:
        """What is going on right now."""
        return self._watch.status(self.busy_seconds() if self.busy_seconds is not None else None)

    def _see_vacancy(self) -> None:
        if self._watch.queued == 0 and not self._places.locked():
            self._vacant.set()
        else:
            self._vacant.clear()

    async def _played(self, task: Task, index: int, again: int) -> Trajectory:
        """Play the episode, again where what failed was not its own."""
        id = f"{self.name}{task.id}#{index}" + (f"~{again}" if again else "")
        drawn = (task.id, index, again) if again else (task.id, index)
        for attempt in range(self.infrastructure_retries + 1):
            running = self._watch.begin()
            try:
                trajectory = await run_episode(
                    task,
                    environment=self.environment(),
                    actor=_WatchedActor(self.actor, self._watch),
                    chat=self.chat,
                    limits=self.limits,
                    id=id,
                    seed=derive_seed(self.seed, *drawn),
                )
            except BaseException:
                self._watch.drop(running)
                raise
            if trajectory.ended is not EndReason.INFRASTRUCTURE or attempt == self.infrastructure_retries:
                break
            self._watch.drop(running)
            self._watch.retried += 1
        self._watch.end(running, trajectory.action_tokens)
        return trajectory

    async def _scored(self, trajectory: Trajectory, task: Task) -> Trajectory:
        if not trajectory.ended.valid:
            return replace(trajectory, removal=Removal.BEFORE_BASELINE)
        try:
            score = await self.reward(trajectory, task)
            said = (score.value, *(score.turns or ()))
            if not all(map(math.isfinite, said)):
                raise ValueError(f"it said {next(value for value in said if not math.isfinite(value))}")
            return replace(trajectory, score=score)
        except WhetstoneError:
            raise
        except Exception as failure:  # foreign code: its failure is recorded, never a reward of 0
            error = f"the reward failed: {type(failure).__name__}: {failure}"
            return replace(trajectory, ended=EndReason.ERROR, error=error, removal=Removal.BEFORE_BASELINE)


@dataclass(frozen=True, slots=True)
class _Again:
    """The roller of a group whose task may have been in the collection before."""

    collector: Collector
    again: int

    async def sample(self, task: Task, *, index: int) -> Trajectory:
        return await self.collector.sample(task, index=index, again=self.again)


@dataclass(frozen=True, slots=True)
class _WatchedActor:
    """Counts how many episodes are with their actor, as against their tools."""

    actor: Actor
    watch: Watch

    async def act(self, moment: Moment) -> Action:
        self.watch.acting += 1
        try:
            return await self.actor.act(moment)
        finally:
            self.watch.acting -= 1

    def leave(self, episode: str) -> None:
        self.actor.leave(episode)
