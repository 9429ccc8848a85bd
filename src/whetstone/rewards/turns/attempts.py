"""What each attempt at an answer was worth by itself."""

from __future__ import annotations

from whetstone.rewards.answers.tried import answers_of
from whetstone.rewards.protocol import needs_private, provides
from whetstone.trajectory import EndReason, Score, Task, Trajectory


@provides("process_rewards")
@needs_private("answer")
async def attempts(trajectory: Trajectory, task: Task) -> Score:
    """1 for each turn that answers rightly, on that turn; success is that of the last. Goes with `second_attempt`.

    The outcome itself is 0: what there is to pay is paid to the turns.
    """
    per_turn = [0.0] * len(trajectory.turns)
    found = answers_of(trajectory, task)
    for number, _, right in found:
        per_turn[number] = float(right)
    over = trajectory.ended is EndReason.TERMINATED
    first, last = (found[0][2], found[-1][2] and over) if found else (False, False)
    parts = {"first_correct": float(first), "last_correct": float(last)}
    return Score(0.0, parts, tuple(per_turn), last)
