"""Strategy that samples n independent episodes of a task (GRPO)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Independent:
    """Samples `group_size` independent episodes of a task in parallel."""

    group_size: int
    """Number of episodes per task."""
    seat: str = ""
    """Role that the policy plays in a game of several players, whose other roles are scripted; empty: the first role.
    """

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the role that the policy plays, as a tuple of at most one name.

        The result is empty if games have no roles.
        """
        return (self.seat,) if self.seat else ()

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        count = roller.samples(self.group_size)
        seat: dict[str, Any] = {"seat": self.seat, "table": None} if self.seat else {}
        return Group(task, tuple(await asyncio.gather(*(roller.sample(task, index=i, **seat) for i in range(count)))))
