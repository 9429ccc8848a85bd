"""Reward that is computed by remote judges: each call goes to the judge with the fewest requests.

A reward is a function, so a call can be repeated.

Note:
    A judge that died never causes a reward of 0. Another judge is called; if there is none, the episode is void.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from whetstone.errors import InfrastructureError
from whetstone.scaling.protocol import ActorUnavailable, Judge
from whetstone.trajectory import Score, Task, Trajectory

T = TypeVar("T")
_LOOK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class _JudgeHandle:
    """A judge with the number of its requests."""

    judge: Judge
    num_requests: int = 0


class DistributedReward:
    """Reward that is computed by remote judges.

    Args:
        judges: One or more judges.
        memory: Returns the pickled state of the recipe's reward.
        patience_seconds: Maximum seconds that an episode waits if all judges are gone.
    """

    def __init__(self, judges: Sequence[Judge], *, memory: Callable[[], bytes | None], patience_seconds: float) -> None:
        self._handles = [_JudgeHandle(judge) for judge in judges]
        self._memory, self.patience_seconds = memory, patience_seconds

    async def __call__(self, trajectory: Trajectory, task: Task, /) -> Score:
        """See `Reward`."""
        return await self._request(lambda judge: judge.judge(trajectory, task, self._memory()))

    async def _request(self, ask: Callable[[Judge], Awaitable[T]]) -> T:
        began, unreachable = time.perf_counter(), set[_JudgeHandle]()
        while True:
            left = [handle for handle in self._handles if handle not in unreachable]
            if not left:
                if time.perf_counter() - began > self.patience_seconds:
                    raise InfrastructureError(
                        f"none of {len(self._handles)} reward workers responded within {self.patience_seconds:g} s "
                        "(scale.start_timeout_seconds)"
                    )
                await asyncio.sleep(_LOOK_SECONDS)
                unreachable.clear()
                continue
            handle = min(left, key=lambda handle: handle.num_requests)
            handle.num_requests += 1
            try:
                return await ask(handle.judge)
            except ActorUnavailable:
                unreachable.add(handle)
            finally:
                handle.num_requests -= 1


class DistributedGroupReward(DistributedReward):
    """Remote reward that also compares the episodes of a group."""

    async def compared(self, trajectories: Sequence[Trajectory], task: Task, /) -> Sequence[Score]:
        """See `GroupReward`."""
        return await self._request(lambda judge: judge.compare(trajectories, task, self._memory()))
