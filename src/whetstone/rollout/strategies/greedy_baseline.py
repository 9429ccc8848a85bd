"""Strategy that adds one greedy episode to the samples, as a baseline."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyBaseline:
    """Samples `group_size` parallel episodes, the last of them greedily: a baseline that is not trained (ReMax)."""

    group_size: int
    """Number of episodes per task, including the greedy one."""

    @property
    def provides(self) -> frozenset[str]:
        """Return `greedy_rewards`: the groups contain a greedily decoded episode."""
        return frozenset({"greedy_rewards"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        last = roller.samples(self.group_size) - 1
        samples = (roller.sample(task, index=i, greedy=i == last) for i in range(last + 1))
        return Group(task, tuple(await asyncio.gather(*samples)))
