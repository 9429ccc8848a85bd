"""Environment rewards: the environment's own verdict at the end, and its rewards per turn."""

from __future__ import annotations

from typing import Literal

from whetstone.rewards.protocol import provides
from whetstone.trajectory import Score, Task, Trajectory


@provides("process_rewards")
async def verdict(trajectory: Trajectory, task: Task, *, pays: Literal["success", "score"] = "success") -> Score:
    """Return the environment's verdict: 1 for success, else 0; or its score, from 0 to 1.

    Numbers of the verdict are components of the score; the environment's rewards after turns are rewards of those
    turns. An episode that ended before a verdict (its deadline passed) has failed.

    Args:
        pays: `success`, or `score` for partial credit.

    Raises:
        ValueError: If there is no verdict, or it has no `success`; use a reward that reads the trajectory, or
            `returns`.
    """
    final = trajectory.final
    turns = tuple(turn.reward or 0.0 for turn in trajectory.turns)
    if not final:
        if trajectory.ended.cut_short:
            return Score(0.0, {"success": 0.0}, turns, success=False)
        raise ValueError(
            "the environment returns no verdict; define verdict() in it, or choose a reward that reads the episode"
        )
    parts = {name: float(value) for name, value in final.items() if isinstance(value, bool | int | float)}
    if "success" not in final:
        raise ValueError(
            f"the verdict has no success, only {', '.join(final)}; return it in verdict(), or for an agent, return a "
            "number or send its reward with POST $OPENAI_BASE_URL/reward"
        )
    success = bool(final["success"])
    return Score(float(final.get("score", success)) if pays == "score" else float(success), parts, turns, success)


@provides("process_rewards")
async def returns(trajectory: Trajectory, task: Task, *, success_at: float = 1.0) -> Score:
    """Return the undiscounted return: the sum of the environment's rewards of all turns.

    Args:
        success_at: Return from which the task counts as solved.
    """
    turns = tuple(turn.reward or 0.0 for turn in trajectory.turns)
    total = sum(turns)
    return Score(total, {"return": total}, turns, success=total >= success_at - 1e-9)
