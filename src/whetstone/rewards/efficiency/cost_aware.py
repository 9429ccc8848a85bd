"""Cost-aware reward: a right answer scores less the more of a budget it uses, but never less than a wrong one."""

from __future__ import annotations

from dataclasses import replace

from whetstone.bounded_types import Positive, ShareBelowOne
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.tool_usage import episode_cost
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


async def cost_aware(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_match,
    budget: Positive,
    weight: ShareBelowOne = 0.5,
    token_price: float = 0.0,
    call_prices: dict[str, float] | None = None,
) -> Score:
    """Return r (1 − w min(1, cost / budget)) for a right answer and r for a wrong one.

    Args:
        outcome: Reward r of the answer.
        budget: Cost from which the reward no longer decreases.
        weight: Weight w of the cost, from 0 to below 1.
        token_price: Price of a sampled token.
        call_prices: Price of a call, by tool; the cost that a tool reports itself is added.

    Raises:
        ValueError: If the budget is not above 0, or the weight is not in [0, 1).

    Source: Budget-aware tool use (BATS) 2025, arXiv:2511.17006, for the unified cost; as a factor it is ours.
    """
    if budget <= 0 or not 0 <= weight < 1:
        raise ValueError(f"budget must be above 0 and weight in [0, 1), got {budget:g} and {weight:g}")
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    cost = episode_cost(trajectory, token_price=token_price, call_prices=call_prices)
    factor = 1 - weight * min(1.0, cost / budget) if score.success else 1.0
    return replace(score, value=score.value * factor, parts={**score.parts, "cost": cost, "thrift": factor})
