"""Which tools, at what cost, in what time does somebody want? Right episodes of a group are paid by a user's wishes.

Easy to get wrong: without the gate of a right answer the cheapest episode wins; and with the outcome among the columns,
a group in which all are right has nothing of it left, since a column that is the same everywhere is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.counting import calls_to, costs_of
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


class Preferences:
    """Right episodes are paid by wishes about tools, outcome, cost and time, each compared within the group; wrong ones
    0.

    Args:
        outcome: Says whether the answer is right.
        prefer: Weight by column: `outcome`, `cost`, `seconds`, and tools by name; below 0 for a tool is a dislike,
            above 0 for `cost` and `seconds` a wish for little. `task.private["preferences"]` overrides it.
        token_price: Of a token, in the cost.
        call_prices: Of a call, by tool.
        positive: Whether a right episode is paid 1 and more, whatever is disliked about it; without, the sum may be
            below that of a wrong one, as in the paper.
        quantile: Clip columns to this quantile and its complement before they are compared; 0: no clipping.

    Source: ToolOrchestra 2025, arXiv:2511.21689, §3; quantiles and `positive` are ours.
    """

    provides = frozenset({"preference"})

    def __init__(
        self,
        *,
        outcome: Reward = exact_match,
        prefer: dict[str, float] | None = None,
        token_price: float = 0.0,
        call_prices: dict[str, float] | None = None,
        positive: bool = True,
        quantile: float = 0.0,
    ) -> None:
        if not 0 <= quantile < 0.5:
            raise ValueError(f"quantile is from 0 to below 0.5, got {quantile:g}")
        self.outcome, self.prefer = outcome, prefer or {"outcome": 1.0, "cost": 0.5, "seconds": 0.5}
        self.token_price, self.call_prices = token_price, call_prices
        self.positive, self.quantile = positive, quantile

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """By itself: the outcome, since there is nothing to compare with."""
        return await self.outcome(trajectory, task)

    async def compared(self, trajectories: Sequence[Trajectory], task: Task) -> Sequence[Score]:
        """Beside each other."""
        scores = [await self.outcome(trajectory, task) for trajectory in trajectories]
        wishes = {**self.prefer, **task.private.get("preferences", {})}
        rows = [
            [self._column(name, t, score) for name in wishes] for t, score in zip(trajectories, scores, strict=True)
        ]
        weights = list(wishes.values())
        paid = preferred(np.array(rows, dtype=float).reshape(len(rows), len(weights)), weights, quantile=self.quantile)
        least = sum(min(0.0, weight) for weight in weights)
        values = []
        for score, value in zip(scores, paid, strict=True):
            paid_here = 0.0 if not score.success else float(value) - least + 1.0 if self.positive else float(value)
            values.append(replace(score, value=paid_here, parts={**score.parts, "preference": float(value)}))
        return values

    def _column(self, name: str, trajectory: Trajectory, score: Score) -> float:
        if name == "outcome":
            return float(bool(score.success))
        if name == "cost":
            return -costs_of(trajectory, token_price=self.token_price, call_prices=self.call_prices)
        if name == "seconds":
            return -trajectory.seconds
        return float(calls_to(trajectory, [name]))


def preferred(columns: np.ndarray, weights: Sequence[float], *, quantile: float = 0.0) -> np.ndarray:
    """[N] M · P, with each column of M [N, K] scaled to 0 … 1 over its rows; one that is the same everywhere is 0.

    Source: ToolOrchestra 2025, arXiv:2511.21689, §3.
    """
    if not len(columns):
        return np.zeros(0)
    if quantile:
        columns = np.clip(columns, np.quantile(columns, quantile, axis=0), np.quantile(columns, 1 - quantile, axis=0))
    low, span = columns.min(0), np.ptp(columns, axis=0)
    scaled = np.where(span > 0, (columns - low) / np.where(span > 0, span, 1.0), 0.0)
    return np.asarray(scaled @ np.asarray(weights, dtype=float))
