"""Exact match of the last number of the final answer.

Note: "10" is in "100", and 1200 is written 1,200, 1200.0 or $1200. Numbers are compared as numbers.
"""

from __future__ import annotations

import re
from fractions import Fraction

from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Score, Task, Trajectory

_MOST_DIGITS = 1000
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+")


async def exact_number(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the last number of the final answer equals `task.private["answer"]`, else 0.

    The argument of the tool `submit` is an answer, too.

    Raises:
        ValueError: If the task's answer contains no number.
    """
    wanted = last_number(str(task.private["answer"]))
    if wanted is None:
        raise ValueError(f"the task's answer contains no number: {str(task.private['answer'])[:60]!r}; use exact_match")
    answer = final_answer(trajectory)
    correct = answer is not None and last_number(answer) == wanted
    return Score(float(correct), parts={"correct": float(correct)}, success=correct)


def last_number(text: str) -> Fraction | None:
    """Return the last number in a text, exactly.

    Returns None without a number, or if the number has too many digits. A minus counts as a sign if no digit precedes
    it: `7-3` ends in 3, `= -3` in −3.
    """
    every = list(_NUMBER.finditer(text))
    if not every:
        return None
    match = every[-1]
    written = match.group()
    if written.startswith("-") and text[: match.start()].rstrip()[-1:].isdigit():
        written = written[1:]
    return Fraction(written.replace(",", "")) if len(written) <= _MOST_DIGITS else None
