"""Is the final answer the right one, word for word? As question answering counts it.

Case, punctuation, articles and white space are not compared; numbers are compared as numbers. `f1` is the overlap of
words, for people to look at; the outcome is the exact match.

Source: SQuAD's evaluation, arXiv:1606.05250.
"""

from __future__ import annotations

import re
import string
from collections import Counter

from whetstone.rewards.answers.exact_number import last_number
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Score, Task, Trajectory

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_A_NUMBER = re.compile(r"-?[\d,]*\.?\d+")


async def exact_match(trajectory: Trajectory, task: Task) -> Score:
    """1 where the final answer is `task.private["answer"]`, else 0."""
    answer, wanted = final_answer(trajectory), str(task.private["answer"])
    right = answer is not None and same_answer(answer, wanted)
    overlap = 0.0 if answer is None else f1(answer, wanted)
    return Score(float(right), {"correct": float(right), "f1": overlap}, success=right)


def same_answer(answer: str, wanted: str) -> bool:
    """Whether two answers are the same.

    >>> same_answer("The Black Sea.", "black sea"), same_answer("$1,200.0", "1200"), same_answer("12", "112")
    (True, True, False)
    """
    if is_number(wanted):
        bare = answer.strip().strip("$€£% .")
        return bool(_A_NUMBER.fullmatch(bare)) and last_number(bare) == last_number(wanted)
    return normalized(answer) == normalized(wanted)


def is_number(text: str) -> bool:
    """Whether a text is a number and nothing else."""
    return _A_NUMBER.fullmatch(text.strip()) is not None


def normalized(text: str) -> str:
    """What is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1(answer: str, wanted: str) -> float:
    """The harmonic mean of how much of the answer is wanted and how much of what is wanted is in it."""
    said, asked = Counter(normalized(answer).split()), Counter(normalized(wanted).split())
    shared = sum((said & asked).values())
    return 0.0 if shared == 0 else 2 * shared / (said.total() + asked.total())
