"""How is an episode judged elsewhere? By whichever judge has the least to do; a reward is a function and can be asked
again.

Easy to get wrong: a judge that died is nobody's reward of 0. Another is asked; where there is none, the episode is
void.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from whetstone.errors import InfrastructureError
from whetstone.scaling.protocol import Gone, Judge
from whetstone.trajectory import Score, Task, Trajectory

T = TypeVar("T")
_LOOK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class _Bench:
    """A judge, and how much was asked of it."""

    judge: Judge
    asked: int = 0


class SpreadReward:
    """A reward that judges elsewhere give.

    Args:
        judges: One or more.
        memory: What the recipe's reward remembers now, packed.
        patience_seconds: For which an episode waits where all are gone.
    """

    def __init__(self, judges: Sequence[Judge], *, memory: Callable[[], bytes | None], patience_seconds: float) -> None:
        self._benches = [_Bench(judge) for judge in judges]
        self._memory, self.patience_seconds = memory, patience_seconds

    async def __call__(self, trajectory: Trajectory, task: Task, /) -> Score:
        """See `Reward`."""
        return await self._asked(lambda judge: judge.judge(trajectory, task, self._memory()))

    async def _asked(self, ask: Callable[[Judge], Awaitable[T]]) -> T:
        began, gone = time.perf_counter(), set[_Bench]()
        while True:
            left = [bench for bench in self._benches if bench not in gone]
            if not left:
                if time.perf_counter() - began > self.patience_seconds:
                    raise InfrastructureError(
                        f"none of {len(self._benches)} reward workers answered within {self.patience_seconds:g} s "
                        "(scale.start_timeout_seconds)"
                    )
                await asyncio.sleep(_LOOK_SECONDS)
                gone.clear()
                continue
            bench = min(left, key=lambda bench: bench.asked)
            bench.asked += 1
            try:
                return await ask(bench.judge)
            except Gone:
                gone.add(bench)
            finally:
                bench.asked -= 1


class ComparingSpreadReward(SpreadReward):
    """One that looks at a group's episodes beside each other, too."""

    async def compared(self, trajectories: Sequence[Trajectory], task: Task, /) -> Sequence[Score]:
        """See `Compares`."""
        return await self._asked(lambda judge: judge.compare(trajectories, task, self._memory()))
