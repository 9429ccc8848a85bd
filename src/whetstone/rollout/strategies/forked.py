"""Branching strategy with random forks: some root episodes, the others from a random turn of one of those.

Note:
    A fork must not share its parent's random numbers after the fork, and must share its environment's seed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBranching:
    """Samples half of `group_size` root episodes, and forks the others after random turns of the roots.

    Parents are taken in rotation. A parent of one turn cannot fork; a new root episode starts instead.
    """

    group_size: int
    """Number of episodes per task, including forks."""

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks`: the groups contain episodes that share turns."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        size = roller.samples(self.group_size)
        count = (size + 1) // 2
        roots = await asyncio.gather(*(roller.sample(task, index=i) for i in range(count)))
        forks = []
        for index in range(count, size):
            parent = roots[index % count]
            inner = len(parent.turns) - 1
            if inner < 1 or not parent.ended.valid:
                forks.append(roller.sample(task, index=index))
            else:
                shared = 1 + roller.random(index).randrange(inner)
                forks.append(roller.fork(task, parent, turns=shared, index=index))
        return Group(task, (*roots, *await asyncio.gather(*forks)))
