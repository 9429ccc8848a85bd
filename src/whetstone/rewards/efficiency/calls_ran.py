"""How many calls ran? A count, and so in need of a bound and a gate: by itself it pays for calling without end."""

from __future__ import annotations

from whetstone.ranges import Count
from whetstone.rewards.efficiency.counting import calls_to
from whetstone.trajectory import Score, Task, Trajectory


async def calls_ran(
    trajectory: Trajectory, task: Task, *, share: bool = False, tools: list[str] | None = None
) -> Score:
    """The number of calls that ran without an error; put it behind `gate` or `times`, with `high`, in `composed`.

    Args:
        share: The share of calls that ran instead, 0 where there was none.
        tools: Whose calls count; null: all tools'.

    Source: Singh et al. 2025 (ARTIST), arXiv:2505.01441, for the share.
    """
    ran = sum(call.outcome == "ok" and (tools is None or call.name in tools) for call in trajectory.calls)
    every = calls_to(trajectory, tools)
    value = (ran / every if every else 0.0) if share else float(ran)
    return Score(value, {"ran": float(ran), "calls": float(every)})


async def few_calls(trajectory: Trajectory, task: Task, *, most: Count = 8, tools: list[str] | None = None) -> Score:
    """1 for no call, 0 for `most` or more, linearly; put it behind `times` or `gate`: added, it pays for giving up.

    Args:
        most: Calls that are worth nothing any more.
        tools: Whose calls count; null: all tools'.

    Raises:
        ValueError: `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"most is 1 or more, got {most}")
    calls = calls_to(trajectory, tools)
    return Score(max(0.0, 1 - calls / most), {"calls": float(calls)})


async def well_formed(trajectory: Trajectory, task: Task) -> Score:
    """1 where every call could be read and named a tool on offer with arguments it accepts, else 0."""
    unreadable = any(turn.message.malformed for turn in trajectory.turns)
    fine = not unreadable and all(call.well_formed for call in trajectory.calls)
    return Score(float(fine), {"malformed": float(unreadable)})
