"""ToolOrchestra reward: scores right episodes of a group by a user's preferences for tools, cost and time.

Note: Without the gate of a right answer the cheapest episode wins. If all episodes of a group are right, the column
`outcome` has no effect, since a constant column is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.tool_usage import count_calls, episode_cost
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


class UserPreferences:
    """Scores right episodes by a user's preferences relative to the group; wrong episodes get 0.

    Args:
        outcome: Reward that determines whether the answer is right.
        prefer: Weight by column: `outcome`, `cost`, `seconds`, and tools by name. A tool weight below 0 is a dislike;
            weights above 0 for `cost` and `seconds` prefer small values. `task.private["preferences"]` overrides it.
        token_price: Price of a sampled token, in the cost.
        call_prices: Price of a call, by tool.
        positive: Whether a right episode gets at least 1, even with dislikes; otherwise the sum may be below that of a
            wrong one, as in the paper.
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
            raise ValueError(f"quantile must be in [0, 0.5), got {quantile:g}")
        self.outcome, self.prefer = outcome, prefer or {"outcome": 1.0, "cost": 0.5, "seconds": 0.5}
        self.token_price, self.call_prices = token_price, call_prices
        self.positive, self.quantile = positive, quantile

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory without its group: by the outcome only."""
        return await self.outcome(trajectory, task)

    async def compared(self, trajectories: Sequence[Trajectory], task: Task) -> Sequence[Score]:
        """Score the trajectories of a group relative to each other."""
        scores = [await self.outcome(trajectory, task) for trajectory in trajectories]
        wishes = {**self.prefer, **task.private.get("preferences", {})}
        rows = [
            [self._column(name, t, score) for name in wishes] for t, score in zip(trajectories, scores, strict=True)
        ]
        weights = list(wishes.values())
        paid = preference_scores(
            np.array(rows, dtype=float).reshape(len(rows), len(weights)), weights, quantile=self.quantile
        )
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
            return -episode_cost(trajectory, token_price=self.token_price, call_prices=self.call_prices)
        if name == "seconds":
            return -trajectory.seconds
        return float(count_calls(trajectory, [name]))


def preference_scores(columns: np.ndarray, weights: Sequence[float], *, quantile: float = 0.0) -> np.ndarray:
    """Compute the preference scores M · P, [N], with each column of M scaled to [0, 1] over its rows.

    A constant column is 0.

    Args:
        columns: [N, K] values of K columns for N trajectories.
        weights: [K] weights P.
        quantile: Quantile to which columns are clipped first; 0: no clipping.

    Source: ToolOrchestra 2025, arXiv:2511.21689, §3.
    """
    if not len(columns):
        return np.zeros(0)
    if quantile:
        columns = np.clip(columns, np.quantile(columns, quantile, axis=0), np.quantile(columns, 1 - quantile, axis=0))
    low, span = columns.min(0), np.ptp(columns, axis=0)
    scaled = np.where(span > 0, (columns - low) / np.where(span > 0, span, 1.0), 0.0)
    return np.asarray(scaled @ np.asarray(weights, dtype=float))
