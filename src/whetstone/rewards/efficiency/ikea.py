"""When is it worth looking something up? A right answer pays more without, a wrong one a little where it was tried."""

from __future__ import annotations

from dataclasses import replace

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.calls_ran import well_formed
from whetstone.rewards.efficiency.counting import calls_to
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
    """1 + 0.6 max(0, 1 − searches / 3) for a right answer; 0.05 for a wrong one behind a search, else 0; −1 for calls
    that cannot be read or name no tool. Only what the model wrote is read for that, never what was retrieved.

    Args:
        outcome: Says whether the answer is right.
        tools: Whose calls are searches; null: all tools'.
        max_searches: Number of searches from which there is no bonus.
        bonus: For a right answer without a search.
        attempt_reward: Reward of a wrong answer after a search; keep it below the reward of every right answer.
        malformed: For calls that are none.

    Source: Huang et al. 2025 (IKEA), arXiv:2505.07596, and its code.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    fine = (await well_formed(trajectory, task)).value == 1.0
    searches, right = calls_to(trajectory, tools), bool(score.success)
    if not fine:
        value = malformed
    elif right:
        value = 1.0 + bonus * max(0.0, 1 - searches / max_searches)
    else:
        value = attempt_reward if searches else 0.0
    parts = {**score.parts, "correct": float(right), "searches": float(searches), "format": float(fine)}
    return replace(score, value=value, parts=parts)
