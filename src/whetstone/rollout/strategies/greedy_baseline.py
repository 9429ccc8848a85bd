"""What would the policy get if it tried nothing? Samples, and beside them one episode without chance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyBaseline:
    """`group_size` episodes side by side, the last of them greedy: it is compared with and not learned from."""

    group_size: int
    """Episodes of each task, the greedy one among them."""

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"greedy_rewards"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        last = roller.samples(self.group_size) - 1
        samples = (roller.sample(task, index=i, greedy=i == last) for i in range(last + 1))
        return Group(task, tuple(await asyncio.gather(*samples)))
