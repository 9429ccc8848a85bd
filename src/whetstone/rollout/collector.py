"""How are many episodes run at once? As coroutines, a bounded number of them, each scored as it ends.

Easy to get wrong: an episode that failed is not an episode that scored 0. Where the ending is not valid, or
the reward cannot tell, there is no score, and the trajectory is removed before any statistic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace

from whetstone.chat import Chat
from whetstone.environments.protocol import Environment
from whetstone.errors import WhetstoneError
from whetstone.rewards import Reward
from whetstone.rollout.protocol import Actor, Strategy
from whetstone.rollout.runner import Limits, run_episode
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
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_in_flight)

    async def sample(self, task: Task, *, index: int) -> Trajectory:
        """See `Roller.sample`."""
        async with self._slots:
            trajectory = await run_episode(
                task,
                environment=self.environment(),
                actor=self.actor,
                chat=self.chat,
                limits=self.limits,
                id=f"{self.name}{task.id}#{index}",
                seed=derive_seed(self.seed, task.id, index),
            )
        return await self._scored(trajectory, task)

    async def groups(self, tasks: Iterable[Task], strategy: Strategy) -> AsyncIterator[Group]:
        """The group of each task, in the order they finish.

        Raises:
            WhetstoneError: A task cannot be played at all; the others are cancelled.
        """
        running = [asyncio.ensure_future(strategy(task, self)) for task in tasks]
        try:
            for finished in asyncio.as_completed(running):
                yield await finished
        finally:
            for left in running:
                left.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*running, return_exceptions=True)

    async def _scored(self, trajectory: Trajectory, task: Task) -> Trajectory:
        if not trajectory.ended.valid:
            return replace(trajectory, removal=Removal.BEFORE_BASELINE)
        try:
            return replace(trajectory, score=await self.reward(trajectory, task))
        except WhetstoneError:
            raise
        except Exception as failure:  # foreign code: its failure is recorded, never a reward of 0
            error = f"the reward failed: {type(failure).__name__}: {failure}"
            return replace(trajectory, ended=EndReason.ERROR, error=error, removal=Removal.BEFORE_BASELINE)
