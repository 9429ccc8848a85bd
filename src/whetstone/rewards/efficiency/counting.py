"""How many tools did an episode use, and what did it cost?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whetstone.trajectory import Trajectory


def calls_to(trajectory: Trajectory, tools: Sequence[str] | None = None) -> int:
    """The calls of an episode, to these tools alone where they are named; one that could not be read counts, too."""
    return sum(tools is None or call.name in tools for call in trajectory.calls)


def costs_of(
    trajectory: Trajectory, *, token_price: float = 0.0, call_prices: Mapping[str, float] | None = None
) -> float:
    """What an episode cost: its tokens and its calls at their prices, and what tools said they cost themselves."""
    prices = call_prices or {}
    of_calls = sum(call.cost + prices.get(call.name, 0.0) for call in trajectory.calls)
    return trajectory.action_tokens * token_price + of_calls
