"""Judgement log: captures judge answers during a reward call and stores them with the score.

Note: A reward asks many questions concurrently, in separate asyncio tasks. They inherit the context of the reward call,
and with it the same list; the reward call of another trajectory has another list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from whetstone.rewards.judges.protocol import Question
from whetstone.trajectory import Judgement
from whetstone.truncate_text import truncate_middle

MOST_KEPT = 64
"""Maximum number of stored judgements per trajectory; a checklist over many turns asks hundreds of questions."""
_LONGEST = 1000
"""Maximum number of stored characters of a question, and of each text in an answer."""
_captured: ContextVar[list[Judgement] | None] = ContextVar("judgements", default=None)


@contextmanager
def capture_judgments() -> Iterator[list[Judgement]]:
    """Capture all judgements that are recorded inside the `with` block, in order."""
    judgments: list[Judgement] = []
    token = _captured.set(judgments)
    try:
        yield judgments
    finally:
        _captured.reset(token)


def record_judgment(question: Question, answer: Mapping[str, Any]) -> None:
    """Append a question and its answer to the captured judgements.

    No effect outside `capture_judgments`.
    """
    judgments = _captured.get()
    if judgments is not None and len(judgments) < MOST_KEPT:
        judgments.append(build_judgment(question.ask, answer))


def build_judgment(ask: str, answer: Mapping[str, Any]) -> Judgement:
    """Build a stored judgement; texts longer than 1,000 characters are truncated in the middle."""
    return Judgement(
        truncate_middle(ask, _LONGEST)[0],
        {
            name: truncate_middle(value, _LONGEST)[0] if isinstance(value, str) else value
            for name, value in answer.items()
        },
    )
