"""Reward that is computed by reward workers: each call goes to the worker with the fewest requests.

A reward is a function, so a call can be repeated.

Note:
    A worker that died never causes a reward of 0. Another worker is called; if there is none, the episode is void.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from whetstone.errors import InfrastructureError
from whetstone.scaling.protocol import ActorUnavailable, RemoteReward
from whetstone.trajectory import Score, Task, Trajectory

T = TypeVar("T")
_LOOK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class _JudgeHandle:
    """Reward worker with the number of its pending requests."""

    judge: RemoteReward
    num_requests: int = 0


class DistributedReward:
    """Reward that forwards calls to reward workers. Environment workers use it instead of the recipe's reward.

    Args:
        judges: One or more reward workers.
        memory: Returns the pickled state of the recipe's reward; None: the reward has no state.
        patience_seconds: Maximum number of seconds that an episode waits if all reward workers are gone.
    """

    def __init__(
        self, judges: Sequence[RemoteReward], *, memory: Callable[[], bytes | None], patience_seconds: float
    ) -> None:
        self._handles = [_JudgeHandle(judge) for judge in judges]
        self._memory, self.patience_seconds = memory, patience_seconds

    async def __call__(self, trajectory: Trajectory, task: Task, /) -> Score:
        """Score a trajectory on the reward worker with the fewest requests.

        Raises:
            InfrastructureError: No reward worker responded in time.
        """
        return await self._request(lambda judge: judge.judge(trajectory, task, self._memory()))

    async def _request(self, ask: Callable[[RemoteReward], Awaitable[T]]) -> T:
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
    """Distributed reward that also compares the episodes of a group."""

    async def compared(self, trajectories: Sequence[Trajectory], task: Task, /) -> Sequence[Score]:
        """Score the trajectories of a group on a reward worker; see `GroupReward.compared`."""
        return await self._request(lambda judge: judge.compare(trajectories, task, self._memory()))
