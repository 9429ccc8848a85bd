"""Outcome of 1, −1 or 0 without an answer, plus a format reward per turn."""

from __future__ import annotations

from dataclasses import replace

from whetstone.bounded_types import NotNegative
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.protocol import Reward, provides
from whetstone.trajectory import EndReason, Score, Task, Trajectory

_ENDED = (EndReason.TERMINATED, EndReason.TOOL_STOPPED)


@provides("process_rewards")
async def outcome_and_format(
    trajectory: Trajectory, task: Task, *, outcome: Reward = exact_match, form: NotNegative = 0.1
) -> Score:
    """Return 1 if the outcome is a success, −1 if not, 0 if the episode did not end normally.

    Each turn gets `form` if all its calls are well-formed, else −`form`. With the advantage `portool` a correct answer
    dominates as long as `form` is below γ^T / 2 for episodes of T turns: 0.36 for γ = 0.95 and 6 turns, 0.18 for 20.

    Args:
        outcome: Reward that determines whether the answer is right.
        form: Reward of a well-formed turn, and penalty of a malformed one.

    Source: arXiv:2510.26020 (PORTool) for the outcome's values and a format reward that correctness dominates; applying
    it to calls is ours.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    right = bool(score.success)
    value = 1.0 if right else -1.0 if trajectory.ended in _ENDED else 0.0
    fine = [not turn.message.malformed and all(call.well_formed for call in turn.calls) for turn in trajectory.turns]
    parts = {**score.parts, "correct": float(right), "answered": float(trajectory.ended in _ENDED)}
    turns = tuple(form if each else -form for each in fine)
    return replace(score, value=value, parts=parts, turns=turns, success=right)
