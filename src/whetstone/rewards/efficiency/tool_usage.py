"""Tool usage of an episode: number of calls and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whetstone.trajectory import Trajectory


def count_calls(trajectory: Trajectory, tools: Sequence[str] | None = None) -> int:
    """Count the tool calls of an episode, including calls with invalid arguments.

    Args:
        trajectory: Finished trajectory.
        tools: Names of the tools whose calls count; None: all tools.
    """
    return sum(tools is None or call.name in tools for call in trajectory.calls)


def episode_cost(
    trajectory: Trajectory, *, token_price: float = 0.0, call_prices: Mapping[str, float] | None = None
) -> float:
    """Compute the cost of an episode: sampled tokens and calls at their prices, plus the costs that tools report."""
    prices = call_prices or {}
    of_calls = sum(call.cost + prices.get(call.name, 0.0) for call in trajectory.calls)
    return trajectory.action_tokens * token_price + of_calls
