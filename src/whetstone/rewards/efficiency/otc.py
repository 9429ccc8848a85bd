"""OTC reward: the reward of a right answer decreases with its number of tool calls; a wrong answer gets 0.

Note: Efficiency that is *added* rewards an agent for giving up immediately. Here it is a factor of correctness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.efficiency.tool_usage import count_calls
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


class Otc:
    """Multiplies correctness by an efficiency factor, which is 1 for the fewest calls of right episodes in the group.

    Args:
        outcome: Reward that determines whether the answer is right, from 0 to 1.
        smooth: Smoothness c of the decrease; the maximum number of calls of an episode is the natural value.
        size: Scale α of the reward.
        tools: Names of the tools whose calls count; null: all tools.
        per_episode: Score each episode without its group (the form for PPO); then no call at all is optimal.
        min_calls_key: Key in the task's private data with the minimum number of calls; null: the minimum of the group.

    Source: Wang et al. 2025 (OTC), arXiv:2504.14870, §3.
    """

    provides = frozenset({"calls", "efficiency"})

    def __init__(
        self,
        *,
        outcome: Reward = exact_number,
        smooth: float = 4.0,
        size: float = 1.0,
        tools: list[str] | None = None,
        per_episode: bool = False,
        min_calls_key: str | None = None,
    ) -> None:
        if smooth <= 0:
            raise ValueError(f"smooth must be above 0, got {smooth:g}")
        self.outcome, self.smooth, self.size, self.tools, self.min_calls_key = (
            outcome,
            smooth,
            size,
            tools,
            min_calls_key,
        )
        self.per_episode = per_episode

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory without its group, as if it had the fewest calls of the group."""
        score = await self.outcome(trajectory, task)
        calls = count_calls(trajectory, self.tools)
        return self._paid(score, calls, None if self.per_episode else calls)

    async def compared(self, trajectories: Sequence[Trajectory], task: Task) -> Sequence[Score]:
        """Score the trajectories of a group relative to the fewest calls of its right episodes."""
        outcomes = [await self.outcome(trajectory, task) for trajectory in trajectories]
        calls = [count_calls(trajectory, self.tools) for trajectory in trajectories]
        right = [count for count, score in zip(calls, outcomes, strict=True) if score.success]
        if self.min_calls_key is not None and self.min_calls_key in task.private:
            right.append(int(task.private[self.min_calls_key]))
        fewest = min(right, default=0)
        return [
            self._paid(score, count, None if self.per_episode else fewest)
            for score, count in zip(outcomes, calls, strict=True)
        ]

    def _paid(self, score: Score, calls: int, fewest: int | None) -> Score:
        if score.invalid:
            return score
        factor = call_efficiency(calls, fewest, smooth=self.smooth)
        right = score.value if score.success else 0.0
        parts = {**score.parts, "correct": float(bool(score.success)), "calls": float(calls), "efficiency": factor}
        return replace(score, value=self.size * factor * right, parts=parts)


def call_efficiency(calls: int, fewest: int | None, *, smooth: float) -> float:
    """Compute the efficiency factor for m calls if n is the minimum number; c is `smooth`.

        n unknown, or 0:  cos(m π / (2 m + c)), which is 1 for m = 0
        else:             sin(f π / (2 n)) with f = 2 n m / (m + n), which is 1 for m = n

    Args:
        calls: Number of calls m.
        fewest: Minimum number of calls n; None: unknown.
        smooth: Smoothness c.

    Source: Wang et al. 2025 (OTC), arXiv:2504.14870, eq. 3 (PPO) and 5 (GRPO); the paper does not specify c.
    """
    if not fewest:
        return math.cos(calls * math.pi / (2 * calls + smooth))
    return math.sin(calls * math.pi / (calls + fewest))
