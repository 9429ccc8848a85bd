"""Right, wrong, or no answer at all; and beside it a little for each turn whose calls can be read."""

from __future__ import annotations

from dataclasses import replace

from whetstone.ranges import NotNegative
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.protocol import Reward, provides
from whetstone.trajectory import EndReason, Score, Task, Trajectory

_ENDED = (EndReason.TERMINATED, EndReason.TOOL_STOPPED)


@provides("process_rewards")
async def outcome_and_format(
    trajectory: Trajectory, task: Task, *, outcome: Reward = exact_match, form: NotNegative = 0.1
) -> Score:
    """1 where the outcome is a success, −1 where it is not, 0 where the episode came to no end; and for each turn
    `form` where all its calls were well-formed, else −`form`.

    With the advantage `portool` a correct answer decides as long as `form` is below γ^T / 2 for episodes of T turns:
    0.36 for γ = 0.95 and 6 turns, 0.18 for 20.

    Args:
        outcome: Says whether the answer is right.
        form: Reward of a well-formed turn, and penalty of a malformed one.

    Source: arXiv:2510.26020 (PORTool) for the outcome's values and a form reward that correctness dominates; that it is
    about calls is ours.
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
