"""A right answer is worth less the later it comes, and the same wrong one again costs.

Easy to get wrong: what cannot be read as an answer is no repetition, and "1/2" and "0.5" are different.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.rewards.answers.exact_match import is_number
from whetstone.rewards.answers.exact_number import last_number
from whetstone.rewards.answers.tried import answers_of
from whetstone.rewards.protocol import needs_private
from whetstone.trajectory import Score, Task, Trajectory


def unary_return(
    answers: Sequence[str], *, solved_at: int | None, discount: float = 0.5, repetition: float = 0.5
) -> float:
    """γ^t of the answer that was right, from 0, less λ (1 − E/T): E different ones of T.

    Source: UFO 2025, arXiv:2507.14295, and its code (`ragen/env/metamathqa/env.py`).
    """
    paid = 0.0 if solved_at is None else discount**solved_at
    if not answers:
        return paid
    different = len({re.sub(r"\s+", " ", answer.strip().lower()) for answer in answers})
    return paid - repetition * (1 - different / len(answers))


@needs_private("answer")
async def unary_feedback(
    trajectory: Trajectory, task: Task, *, discount: float = 0.5, repetition: float = 0.5
) -> Score:
    """What `unary_return` says of an episode's answers; goes with the partner `try_again`.

    Args:
        discount: γ: what an answer is worth, by how many stood before it.
        repetition: λ: what saying the same again costs.
    """
    found = answers_of(trajectory, task)
    solved_at = next((k for k, (_, _, right) in enumerate(found) if right), None)
    of_numbers = is_number(str(task.private["answer"]))
    readable = [text for _, text, _ in found if (last_number(text) is not None if of_numbers else text.strip())]
    value = unary_return(readable, solved_at=solved_at, discount=discount, repetition=repetition)
    success = solved_at is not None
    return Score(value, {"correct": float(success), "attempts": float(len(found))}, success=success)
