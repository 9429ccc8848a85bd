"""The plainest tree: some episodes from the start, the others from a turn in the middle of one of those.

Easy to get wrong: a fork must not share its parent's chance behind the turn they part at, and must share its world.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """Half of `group_size` episodes from the start; each of the others forks after a turn of one of them.

    Parents are taken in turn, and the turn by chance. A parent of one turn cannot fork: a new episode starts.
    """

    group_size: int
    """Episodes of each task, forks among them."""

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        size = roller.samples(self.group_size)
        count = (size + 1) // 2
        whole = await asyncio.gather(*(roller.sample(task, index=i) for i in range(count)))
        forks = []
        for index in range(count, size):
            parent = whole[index % count]
            inner = len(parent.turns) - 1
            if inner < 1 or not parent.ended.valid:
                forks.append(roller.sample(task, index=index))
            else:
                shared = 1 + roller.random(index).randrange(inner)
                forks.append(roller.fork(task, parent, turns=shared, index=index))
        return Group(task, (*whole, *await asyncio.gather(*forks)))
