"""Reward for an answer from another source: a frozen generator that follows a planner, or an agent's return value.

Note: The last message of the policy is then a plan, not an answer.
"""

from __future__ import annotations

from dataclasses import replace

from whetstone.chat import assistant
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import EndReason, Score, Task, Trajectory


async def submitted_answer(trajectory: Trajectory, task: Task, *, outcome: Reward = exact_match) -> Score:
    """Score the `answer` in the environment's verdict by `outcome`; 0 and no success without an answer.

    Args:
        outcome: Reward that scores the answer as if it were the policy's final answer.
    """
    answer = trajectory.final.get("answer")
    if not isinstance(answer, str) or not trajectory.turns:
        return Score(0.0, success=False)
    last = replace(trajectory.turns[-1], message=assistant(answer))
    return await outcome(replace(trajectory, turns=(*trajectory.turns[:-1], last), ended=EndReason.TERMINATED), task)
