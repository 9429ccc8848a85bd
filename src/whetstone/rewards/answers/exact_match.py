"""Exact match of the final answer, as in question-answering benchmarks.

Case, punctuation, articles and white space are ignored, and numbers are compared as numbers. The F1 score of words is
reported as the metric `f1`; the reward is the exact match.

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
    """Return 1 if the final answer equals `task.private["answer"]` after normalization, else 0.

    The metric `f1` is the overlap of words.
    """
    answer, wanted = final_answer(trajectory), str(task.private["answer"])
    right = answer is not None and same_answer(answer, wanted)
    overlap = 0.0 if answer is None else compute_f1(answer, wanted)
    return Score(float(right), {"correct": float(right), "f1": overlap}, success=right)


def same_answer(answer: str, wanted: str) -> bool:
    """Return whether an answer equals the wanted one, as numbers if the wanted one is a number, else normalized.

    >>> same_answer("The Black Sea.", "black sea"), same_answer("$1,200.0", "1200"), same_answer("12", "112")
    (True, False, False)
    """
    if is_plain_number(wanted):
        bare = answer.strip().strip("$€£% .")
        return bool(_A_NUMBER.fullmatch(bare)) and last_number(bare) == last_number(wanted)
    return normalize_answer(answer) == normalize_answer(wanted)


def is_plain_number(text: str) -> bool:
    """Return whether a text consists of one number and nothing else."""
    return _A_NUMBER.fullmatch(text.strip()) is not None


def normalize_answer(text: str) -> str:
    """Normalize a text for comparison: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compute_f1(answer: str, wanted: str) -> float:
    """Compute the F1 score of the words of an answer: the harmonic mean of precision and recall, from 0 to 1."""
    answer_words, wanted_words = Counter(normalize_answer(answer).split()), Counter(normalize_answer(wanted).split())
    shared = sum((answer_words & wanted_words).values())
    return 0.0 if shared == 0 else 2 * shared / (answer_words.total() + wanted_words.total())
