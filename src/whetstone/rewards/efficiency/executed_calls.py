"""Rewards that count tool calls.

Note: A count needs a bound and a gate; by itself it rewards calling without end.
"""

from __future__ import annotations

from whetstone.bounded_types import Count
from whetstone.rewards.efficiency.tool_usage import count_calls
from whetstone.trajectory import Score, Task, Trajectory


async def executed_calls(
    trajectory: Trajectory, task: Task, *, partial_credit: bool = False, tools: list[str] | None = None
) -> Score:
    """Count the calls that ran without an error; use it with `gate` or `times`, and `high`, in `composed`.

    Args:
        partial_credit: Return the fraction of calls that ran instead; 0 without calls.
        tools: Names of the tools whose calls count; null: all tools.

    Source: Singh et al. 2025 (ARTIST), arXiv:2505.01441, for the fraction.
    """
    ran = sum(call.outcome == "ok" and (tools is None or call.name in tools) for call in trajectory.calls)
    every = count_calls(trajectory, tools)
    value = (ran / every if every else 0.0) if partial_credit else float(ran)
    return Score(value, {"ran": float(ran), "calls": float(every)})


async def few_calls(
    trajectory: Trajectory, task: Task, *, max_calls: Count = 8, tools: list[str] | None = None
) -> Score:
    """Return 1 for no call, 0 for `max_calls` or more, linear in between.

    Use it with `times` or `gate`: added to other terms, it rewards giving up.

    Args:
        max_calls: Number of calls from which the reward is 0.
        tools: Names of the tools whose calls count; null: all tools.

    Raises:
        ValueError: If `max_calls` is below 1.
    """
    if max_calls < 1:
        raise ValueError(f"max_calls must be at least 1, got {max_calls}")
    calls = count_calls(trajectory, tools)
    return Score(max(0.0, 1 - calls / max_calls), {"calls": float(calls)})


async def well_formed(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if every call could be parsed and names an available tool with valid arguments, else 0."""
    unreadable = any(turn.message.malformed for turn in trajectory.turns)
    fine = not unreadable and all(call.well_formed for call in trajectory.calls)
    return Score(float(fine), {"malformed": float(unreadable)})
