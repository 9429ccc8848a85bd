"""Was the customer helped, as tau2-bench counts it: the database, and what had to be said.

What its natural-language assertions ask is not judged here.

Source: tau2-bench, arXiv:2506.07982.
"""

from __future__ import annotations

from whetstone.trajectory import Score, Task, Trajectory


async def retail(trajectory: Trajectory, task: Task) -> Score:
    """1 where the database is as the gold actions leave it, everything that had to be said was said, and the user ended
    the conversation; else 0."""
    final = trajectory.final
    said = " ".join(turn.message.text for turn in trajectory.turns).replace(",", "").lower()
    wanted = [str(text).replace(",", "").lower() for text in task.private["to_say"]]
    database = bool(final.get("success"))
    spoken = all(text in said for text in wanted)
    ended = bool(final.get("user_ended"))
    right = database and spoken and ended
    parts = {"database": float(database), "communicated": float(spoken), "user_ended": float(ended)}
    return Score(float(right), parts, success=right)
