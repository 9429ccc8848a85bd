"""How are tools used no more than needed? What a right answer pays falls with the calls it took; a wrong one pays 0.

Easy to get wrong: efficiency that is *added* pays an agent that gives up at once. Here it is a factor of correctness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.efficiency.counting import calls_to
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


class Otc:
    """Correctness times a factor for tool calls, which is 1 at the fewest calls a right episode of the group made.

    Args:
        outcome: Says whether the answer is right, from 0 to 1.
        smooth: c: how gently it falls; the most calls an episode may make is the natural value.
        size: α.
        tools: Which tools' calls count; null: all.
        per_episode: Score each episode without its group (the form for PPO); then no call at all is optimal.
        min_calls_key: Key in the task's private data with the minimum number of calls; null: that of the group.

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
            raise ValueError(f"smooth is above 0, got {smooth:g}")
        self.outcome, self.smooth, self.size, self.tools, self.min_calls_key = (
            outcome,
            smooth,
            size,
            tools,
            min_calls_key,
        )
        self.per_episode = per_episode

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """By itself; where the group counts, as if it had the fewest calls there are."""
        score = await self.outcome(trajectory, task)
        calls = calls_to(trajectory, self.tools)
        return self._paid(score, calls, None if self.per_episode else calls)

    async def compared(self, trajectories: Sequence[Trajectory], task: Task) -> Sequence[Score]:
        """Beside each other."""
        outcomes = [await self.outcome(trajectory, task) for trajectory in trajectories]
        calls = [calls_to(trajectory, self.tools) for trajectory in trajectories]
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
        factor = efficiency(calls, fewest, smooth=self.smooth)
        right = score.value if score.success else 0.0
        parts = {**score.parts, "correct": float(bool(score.success)), "calls": float(calls), "efficiency": factor}
        return replace(score, value=self.size * factor * right, parts=parts)


def efficiency(calls: int, fewest: int | None, *, smooth: float) -> float:
    """The factor for m calls where n are the fewest that do, c being `smooth`.

        n unknown, or 0:  cos(m π / (2 m + c)), which is 1 for m = 0
        else:             sin(f π / (2 n)) with f = 2 n m / (m + n), which is 1 for m = n

    Source: Wang et al. 2025 (OTC), arXiv:2504.14870, eq. 3 (PPO) and 5 (GRPO); c is not told there.
    """
    if not fewest:
        return math.cos(calls * math.pi / (2 * calls + smooth))
    return math.sin(calls * math.pi / (calls + fewest))
