"""Is the last number of the final answer the right one?

Easy to get wrong: "10" is in "100", and 1200 is written 1,200, 1200.0 or $1200. Numbers are
compared as numbers.
"""

from __future__ import annotations

import re
from fractions import Fraction

from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Score, Task, Trajectory

_MOST_DIGITS = 1000
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+")


async def exact_number(trajectory: Trajectory, task: Task) -> Score:
    """1 where the episode ended with an answer whose last number equals `task.private["answer"]`, else 0.

    What is given to the tool `submit` is an answer, too.

    Raises:
        ValueError: There is no number in the task's answer, so none could be right.
    """
    wanted = last_number(str(task.private["answer"]))
    if wanted is None:
        raise ValueError(f"there is no number in the task's answer: {str(task.private['answer'])[:60]!r}")
    answer = final_answer(trajectory)
    correct = answer is not None and last_number(answer) == wanted
    return Score(float(correct), parts={"correct": float(correct)}, success=correct)


def last_number(text: str) -> Fraction | None:
    """The last number in a text, exactly; None where there is none, or one of more digits than anybody reads.

    A minus counts as a sign where no digit stands before it: `7-3` ends in 3, `= -3` in −3.
    """
    every = list(_NUMBER.finditer(text))
    if not every:
        return None
    found = every[-1]
    written = found.group()
    if written.startswith("-") and text[: found.start()].rstrip()[-1:].isdigit():
        written = written[1:]
    return Fraction(written.replace(",", "")) if len(written) <= _MOST_DIGITS else None
