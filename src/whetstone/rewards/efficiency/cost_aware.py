"""What did it cost? A right answer pays less the more of a budget it took, and never less than a wrong one."""

from __future__ import annotations

from dataclasses import replace

from whetstone.ranges import Positive, ShareBelowOne
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.counting import costs_of
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
    """r (1 − w min(1, cost / budget)) for a right answer, r for another.

    Args:
        outcome: r.
        budget: What may be spent before it makes no difference any more.
        weight: w, below 1.
        token_price: Of a token the model produced.
        call_prices: Of a call, by tool; what a tool says it costs itself comes on top.

    Raises:
        ValueError: A budget that is none, or a weight that would make a right answer worth nothing.

    Source: Budget-aware tool use (BATS) 2025, arXiv:2511.17006, for the unified cost; as a factor it is ours.
    """
    if budget <= 0 or not 0 <= weight < 1:
        raise ValueError(f"budget is above 0 and weight from 0 to below 1, got {budget:g} and {weight:g}")
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    cost = costs_of(trajectory, token_price=token_price, call_prices=call_prices)
    factor = 1 - weight * min(1.0, cost / budget) if score.success else 1.0
    return replace(score, value=score.value * factor, parts={**score.parts, "cost": cost, "thrift": factor})
