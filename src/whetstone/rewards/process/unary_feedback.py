"""UFO reward: a right answer scores less the later it is given, and repeated answers are penalized.

Note: A text that cannot be parsed as an answer is not a repetition, and "1/2" and "0.5" are different.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.rewards.answers.answer_attempts import answer_attempts
from whetstone.rewards.answers.exact_match import is_plain_number
from whetstone.rewards.answers.exact_number import last_number
from whetstone.rewards.protocol import needs_private
from whetstone.trajectory import Score, Task, Trajectory


def unary_return(
    answers: Sequence[str], *, solved_at: int | None, discount: float = 0.5, repetition: float = 0.5
) -> float:
    """Compute γ^t − λ (1 − E/T) for a right answer at attempt t, with E distinct answers of T; without one, γ^t is 0.

    Args:
        answers: Texts of all attempts.
        solved_at: Index t of the right answer, from 0; None: no right answer.
        discount: Discount γ per preceding answer.
        repetition: Penalty λ of repeated answers.

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
    """Score the answers of an episode by `unary_return`; use it with the environment wrapper `try_again`.

    Args:
        discount: Discount γ per preceding answer.
        repetition: Penalty λ of repeated answers.
    """
    answers = answer_attempts(trajectory, task)
    solved_at = next((k for k, (_, _, right) in enumerate(answers) if right), None)
    of_numbers = is_plain_number(str(task.private["answer"]))
    readable = [text for _, text, _ in answers if (last_number(text) is not None if of_numbers else text.strip())]
    value = unary_return(readable, solved_at=solved_at, discount=discount, repetition=repetition)
    success = solved_at is not None
    return Score(value, {"correct": float(success), "attempts": float(len(answers))}, success=success)
