"""SMART reward: penalizes tool use on tasks that the model solves without tools."""

from __future__ import annotations

from dataclasses import replace

from whetstone.bounded_types import ShareBelowOne
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.tool_usage import count_calls
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


async def self_aware(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_match,
    known_from: float = 0.75,
    penalty: ShareBelowOne = 0.5,
    tools: list[str] | None = None,
) -> Score:
    """Reduce the reward of a right answer that used a tool on a task that the model solves without tools.

    The pass rate without tools is `task.private["pass_rate_without_tools"]`, measured beforehand; without it, there is
    no penalty. The score components `overuse` and `underuse` are 0 or 1.

    Args:
        outcome: Reward that determines whether the answer is right.
        known_from: Pass rate from which the model counts as able to solve the task without tools.
        penalty: Fraction of the reward that is subtracted, in [0, 1).
        tools: Names of the tools whose calls count; null: all tools.

    Source: Qian et al. 2025 (SMART), arXiv:2502.11435. There it is a diagnostic; as a reward it is ours.
    """
    if not 0 <= penalty < 1:
        raise ValueError(f"penalty must be in [0, 1), got {penalty:g}")
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    rate = task.private.get("pass_rate_without_tools")
    used = count_calls(trajectory, tools) > 0
    overuse = rate is not None and used and float(rate) >= known_from
    underuse = rate is not None and not used and float(rate) < known_from
    factor = 1 - penalty if overuse and score.success else 1.0
    parts = {**score.parts, "overuse": float(overuse), "underuse": float(underuse)}
    return replace(score, value=score.value * factor, parts=parts)
