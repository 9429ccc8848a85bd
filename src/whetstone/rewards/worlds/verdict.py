"""What did the environment itself say of how it went? Its verdict at the end, and its rewards on the way."""

from __future__ import annotations

from typing import Literal

from whetstone.rewards.protocol import provides
from whetstone.trajectory import Score, Task, Trajectory


@provides("process_rewards")
async def verdict(trajectory: Trajectory, task: Task, *, pays: Literal["success", "score"] = "success") -> Score:
    """What the environment said at the end: 1 for success, else 0; or its score, from 0 to 1.

    Numbers it counted are parts; the rewards it gave behind turns are rewards of those turns.

    An episode that ended before the environment could say anything (its deadline passed) has failed.

    Args:
        pays: `success`, or `score` where the way there is to be worth something, too.

    Raises:
        ValueError: The environment says nothing at the end, or not whether it was a success; use a reward that reads
            the trajectory, or `returns`.
    """
    final = trajectory.final
    turns = tuple(turn.reward or 0.0 for turn in trajectory.turns)
    if not final:
        if trajectory.ended.cut_short:
            return Score(0.0, {"success": 0.0}, turns, success=False)
        raise ValueError("the environment says nothing of how an episode went (it has no verdict())")
    parts = {name: float(value) for name, value in final.items() if isinstance(value, bool | int | float)}
    if "success" not in final:
        raise ValueError(
            f"the verdict says nothing of success, it has {', '.join(final)}; an agent returns a number, or is paid by "
            "POST $OPENAI_BASE_URL/reward"
        )
    success = bool(final["success"])
    return Score(float(final.get("score", success)) if pays == "score" else float(success), parts, turns, success)


@provides("process_rewards")
async def returns(trajectory: Trajectory, task: Task, *, success_at: float = 1.0) -> Score:
    """Return of the episode: the sum of the rewards of its turns.

    Args:
        success_at: The sum from which on the task counts as solved.
    """
    turns = tuple(turn.reward or 0.0 for turn in trajectory.turns)
    total = sum(turns)
    return Score(total, {"return": total}, turns, success=total >= success_at - 1e-9)
