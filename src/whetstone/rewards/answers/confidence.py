"""How sure did the agent say it is, and was it right to be?

Easy to get wrong: a confidence that was not said is not one half. And where all answers of a group are right, or all
wrong, confidence alone tells them apart; its size is to be small beside the answer's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.calls.canonical import arguments_of
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory

_SAID = re.compile(r"confidence\W{1,4}(\d+(?:\.\d+)?|\.\d+)\s*(%?)", re.IGNORECASE)


async def calibrated(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_match,
    form: Literal["separated", "brier"] = "separated",
    right_size: float = 0.5,
    wrong_size: float = 0.5,
    missing: float = -1.0,
) -> Score:
    """The outcome, and how well the confidence said with it fits.

    `separated` keeps every right answer 1 or more above every wrong one; `brier` does not.

    Args:
        outcome: Says whether the answer is right.
        form: Which of the two.
        right_size: b₁, of `separated`.
        wrong_size: b₂.
        missing: What an answer pays that says no confidence from 0 to 1.

    Source: Confidence Dichotomy 2026, arXiv:2601.07264; the form of `separated` is ours.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    said, right = stated_confidence(trajectory), bool(score.success)
    if said is None:
        return replace(score, value=missing, parts={**score.parts, "confidence_said": 0.0})
    paid = brier_paid(right, said) if form == "brier" else separated_paid(right, said, right_size, wrong_size)
    return replace(score, value=paid, parts={**score.parts, "confidence_said": 1.0, "confidence": said})


def separated_paid(right: bool, confidence: float, right_size: float = 0.5, wrong_size: float = 0.5) -> float:
    """1 + b₁ (1 − (1 − q)²) for a right answer, −b₂ q² for a wrong one.

    Source: Confidence Dichotomy 2026, arXiv:2601.07264, in our reading.
    """
    return 1 + right_size * (1 - (1 - confidence) ** 2) if right else -wrong_size * confidence**2


def brier_paid(right: bool, confidence: float) -> float:
    """y − (q − y)²: a right answer said with little confidence pays little more than a wrong one said with none.

    Source: Confidence Dichotomy 2026, arXiv:2601.07264.
    """
    return float(right) - (confidence - float(right)) ** 2


def stated_confidence(trajectory: Trajectory) -> float | None:
    """The confidence an episode ended with, from 0 to 1: `confidence: 0.8` or `80%` in its last text, or an argument of
    that name of its last call; None where there is none, or one that is no probability."""
    if not trajectory.turns:
        return None
    message = trajectory.turns[-1].message
    for call in message.tool_calls:
        value = arguments_of(call.arguments).get("confidence")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) if 0 <= value <= 1 else None
    found = _SAID.findall(message.text)
    if not found:
        return None
    number, percent = found[-1]
    said = float(number) / (100 if percent else 1)
    return said if 0 <= said <= 1 else None
