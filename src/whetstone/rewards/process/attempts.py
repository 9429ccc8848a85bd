"""Process reward for each answer attempt."""

from __future__ import annotations

from whetstone.rewards.answers.answer_attempts import answer_attempts
from whetstone.rewards.protocol import needs_private, provides
from whetstone.trajectory import EndReason, Score, Task, Trajectory


@provides("process_rewards")
@needs_private("answer")
async def attempts(trajectory: Trajectory, task: Task) -> Score:
    """Score each answer attempt: 1 for a turn with a right answer, else 0; the last attempt determines success.

    The outcome is 0: all rewards are rewards of turns. Use it with the environment wrapper `second_attempt`.
    """
    per_turn = [0.0] * len(trajectory.turns)
    answers = answer_attempts(trajectory, task)
    for number, _, right in answers:
        per_turn[number] = float(right)
    over = trajectory.ended is EndReason.TERMINATED
    first, last = (answers[0][2], answers[-1][2] and over) if answers else (False, False)
    parts = {"first_correct": float(first), "last_correct": float(last)}
    return Score(0.0, parts, tuple(per_turn), last)
