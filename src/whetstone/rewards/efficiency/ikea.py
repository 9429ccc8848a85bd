"""IKEA reward: a right answer scores more with fewer searches, a wrong one scores a little after a search."""

from __future__ import annotations

from dataclasses import replace

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.executed_calls import well_formed
from whetstone.rewards.efficiency.tool_usage import count_calls
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


async def ikea(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_match,
    tools: list[str] | None = None,
    max_searches: int = 3,
    bonus: float = 0.6,
    attempt_reward: float = 0.05,
    malformed: float = -1.0,
) -> Score:
    """Return 1 + 0.6 max(0, 1 − searches / 3) for a right answer, and 0.05 for a wrong one after a search, else 0.

    Calls that cannot be parsed or name no tool give −1. Only the model's own text is checked for that, not retrieved
    text.

    Args:
        outcome: Reward that determines whether the answer is right.
        tools: Names of the tools that are searches; null: all tools.
        max_searches: Number of searches from which there is no bonus.
        bonus: Bonus of a right answer without a search.
        attempt_reward: Reward of a wrong answer after a search; keep it below the reward of every right answer.
        malformed: Reward of an episode with malformed calls.

    Source: Huang et al. 2025 (IKEA), arXiv:2505.07596, and its code.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    fine = (await well_formed(trajectory, task)).value == 1.0
    searches, right = count_calls(trajectory, tools), bool(score.success)
    if not fine:
        value = malformed
    elif right:
        value = 1.0 + bonus * max(0.0, 1 - searches / max_searches)
    else:
        value = attempt_reward if searches else 0.0
    parts = {**score.parts, "correct": float(right), "searches": float(searches), "format": float(fine)}
    return replace(score, value=value, parts=parts)
