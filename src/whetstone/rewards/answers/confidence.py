"""Calibration reward: scores the confidence that the agent states with its answer.

Note: A missing confidence is not 0.5. If all answers of a group are right, or all are wrong, only confidence
distinguishes them; keep its weight small relative to that of the answer.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.calls.canonical import parse_or_empty
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
    """Score the outcome together with the calibration of the confidence that the agent states.

    With `separated` every right answer scores at least 1 more than every wrong one; `brier` does not guarantee that.

    Args:
        outcome: Reward that determines whether the answer is right.
        form: Formula: `separated` (`separated_score`) or `brier` (`brier_score`).
        right_size: Factor b₁ of `separated` for right answers.
        wrong_size: Factor b₂ of `separated` for wrong answers.
        missing: Reward of an answer without a confidence in [0, 1].

    Source: Confidence Dichotomy 2026, arXiv:2601.07264; the form of `separated` is ours.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    confidence, right = stated_confidence(trajectory), bool(score.success)
    if confidence is None:
        return replace(score, value=missing, parts={**score.parts, "confidence_said": 0.0})
    value = (
        brier_score(right, confidence)
        if form == "brier"
        else separated_score(right, confidence, right_size, wrong_size)
    )
    return replace(score, value=value, parts={**score.parts, "confidence_said": 1.0, "confidence": confidence})


def separated_score(right: bool, confidence: float, right_size: float = 0.5, wrong_size: float = 0.5) -> float:
    """Compute the separated calibration score: 1 + b₁ (1 − (1 − q)²) for a right answer, −b₂ q² for a wrong one.

    q is the stated confidence, b₁ is `right_size`, b₂ is `wrong_size`.

    Source: Confidence Dichotomy 2026, arXiv:2601.07264, as we interpret it.
    """
    return 1 + right_size * (1 - (1 - confidence) ** 2) if right else -wrong_size * confidence**2


def brier_score(right: bool, confidence: float) -> float:
    """Compute the Brier calibration score y − (q − y)², with y = 1 for a right answer and the stated confidence q.

    A right answer with low confidence scores little more than a wrong one with confidence 0.

    Source: Confidence Dichotomy 2026, arXiv:2601.07264.
    """
    return float(right) - (confidence - float(right)) ** 2


def stated_confidence(trajectory: Trajectory) -> float | None:
    """Parse the confidence at the end of an episode, from 0 to 1.

    Returns None if no valid confidence is stated. Accepted are `confidence: 0.8` or `80%` in the last text, or
    an argument `confidence` of the last call.
    """
    if not trajectory.turns:
        return None
    message = trajectory.turns[-1].message
    for call in message.tool_calls:
        value = parse_or_empty(call.arguments).get("confidence")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) if 0 <= value <= 1 else None
    matches = _SAID.findall(message.text)
    if not matches:
        return None
    number, percent = matches[-1]
    confidence = float(number) / (100 if percent else 1)
    return confidence if 0 <= confidence <= 1 else None
