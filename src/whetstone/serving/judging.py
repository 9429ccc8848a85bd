"""What was an episode worth that nobody paid? What the recipe's reward says of the recorded trace.

Easy to get wrong: a reward that cannot tell is no reward of 0. Then the episode is on record without a score, with the
reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from whetstone.errors import WhetstoneError
from whetstone.rewards import Reward, scored
from whetstone.rewards.scoring import REWARD_FAILED
from whetstone.trajectory import EndReason, RemovalScope, Task, Trajectory


class Judging:
    """Scores trajectories that have no score, and hands all of them on.

    Args:
        over: Takes each when it is judged.
        seconds: The reward may take; None: any.
        say: Told in a line where the reward cannot tell.
    """

    def __init__(
        self,
        reward: Reward,
        over: Callable[[Trajectory], None],
        *,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._reward, self._over, self._seconds, self._say = reward, over, seconds, say
        self._under_way: set[asyncio.Task[None]] = set()

    def __call__(self, trajectory: Trajectory, task: Task) -> None:
        """Hand it on when it is judged."""
        if trajectory.score is not None:
            self._over(trajectory)
            return
        judging = asyncio.ensure_future(self._judged(trajectory, task))
        self._under_way.add(judging)
        judging.add_done_callback(self._under_way.discard)

    async def settled(self) -> None:
        """All that is over is judged and handed on."""
        while self._under_way:
            await asyncio.gather(*self._under_way)

    async def _judged(self, trajectory: Trajectory, task: Task) -> None:
        try:
            found = await scored(self._reward, trajectory, task, seconds=self._seconds)
        except WhetstoneError as error:  # somebody has to mend something; what was said is kept all the same
            said = f"{REWARD_FAILED}{error}"
            found = replace(trajectory, ended=EndReason.ERROR, error=said, removal=RemovalScope.BEFORE_BASELINE)
        if found.score is None:
            self._say(f"{found.id}: {found.error}")
        self._over(found)
