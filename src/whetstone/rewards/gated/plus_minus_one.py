"""Outcome reward of 1 or −1."""

from __future__ import annotations

from dataclasses import replace

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


async def plus_minus_one(trajectory: Trajectory, task: Task, *, outcome: Reward = exact_match) -> Score:
    """Return 1 if the outcome is a success, else −1; no reward for format or code that runs.

    Args:
        outcome: Reward that determines whether the answer is right.

    Source: Feng et al. 2025 (ReTool), arXiv:2504.11536.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    right = bool(score.success)
    return replace(score, value=1.0 if right else -1.0, parts={**score.parts, "correct": float(right)}, success=right)
