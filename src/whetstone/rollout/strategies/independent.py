"""The plainest strategy: n episodes of a task that know nothing of each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Independent:
    """`group_size` episodes side by side."""

    group_size: int
    """Episodes of each task."""

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        count = roller.samples(self.group_size)
        return Group(task, tuple(await asyncio.gather(*(roller.sample(task, index=i) for i in range(count)))))
