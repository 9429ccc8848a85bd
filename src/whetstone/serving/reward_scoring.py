"""Reward scoring of ended episodes that received no reward, by the recipe's reward function.

Note:
    A reward function that fails does not give a reward of 0. The episode is then recorded without a score and with the
    reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from whetstone.errors import WhetstoneError
from whetstone.rewards import Reward, score_trajectory
from whetstone.rewards.scoring import REWARD_FAILED
from whetstone.trajectory import EndReason, RemovalScope, Task, Trajectory


class RewardScorer:
    """Scores the trajectories of ended episodes that have no reward (`whetstone serve --judge`).

    Args:
        on_scored: Receives each trajectory when it is scored.
        seconds: Maximum duration of the reward function; None: no limit.
        say: Receives one line if the reward function fails.
    """

    def __init__(
        self,
        reward: Reward,
        on_scored: Callable[[Trajectory], None],
        *,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._reward, self._on_scored, self._seconds, self._say = reward, on_scored, seconds, say
        self._running: set[asyncio.Task[None]] = set()

    def __call__(self, trajectory: Trajectory, task: Task) -> None:
        """Score a trajectory in a background task, and pass it to `on_scored`; an existing score is kept."""
        if trajectory.score is not None:
            self._on_scored(trajectory)
            return
        scoring = asyncio.ensure_future(self._score(trajectory, task))
        self._running.add(scoring)
        scoring.add_done_callback(self._running.discard)

    async def wait_idle(self) -> None:
        """Wait until all background tasks have scored their trajectories."""
        while self._running:
            await asyncio.gather(*self._running)

    async def _score(self, trajectory: Trajectory, task: Task) -> None:
        try:
            scored_trajectory = await score_trajectory(self._reward, trajectory, task, seconds=self._seconds)
        except WhetstoneError as error:  # the user must fix the cause; the conversation is kept
            problem = f"{REWARD_FAILED}{error}"
            scored_trajectory = replace(
                trajectory, ended=EndReason.ERROR, error=problem, removal=RemovalScope.BEFORE_BASELINE
            )
        if scored_trajectory.score is None:
            self._say(f"{scored_trajectory.id}: {scored_trajectory.error}")
        self._on_scored(scored_trajectory)
