"""What did judges say while a reward was asked? Kept beside the score, so that a person can read why.

Easy to get wrong: a reward asks many questions at once, in tasks of their own. They have the context of whoever asked
the reward, and with it the same list; another trajectory's reward has another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from whetstone.rewards.judges.protocol import Question
from whetstone.shortening import shortened
from whetstone.trajectory import Judgement

MOST_KEPT = 64
"""Judgements of one trajectory; a checklist over many turns asks hundreds of questions."""
_LONGEST = 1000
"""Letters of a question that are kept, and of each text in an answer."""
_heard: ContextVar[list[Judgement] | None] = ContextVar("judgements", default=None)


@contextmanager
def judgements_heard() -> Iterator[list[Judgement]]:
    """What judges say inside, as they say it."""
    heard: list[Judgement] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def hear(question: Question, answer: Mapping[str, Any]) -> None:
    """Tell whoever listens what a judge said."""
    heard = _heard.get()
    if heard is not None and len(heard) < MOST_KEPT:
        heard.append(judgement_of(question.ask, answer))


def judgement_of(ask: str, answer: Mapping[str, Any]) -> Judgement:
    """A judgement as it is kept: long texts are cut."""
    return Judgement(
        shortened(ask, _LONGEST)[0],
        {name: shortened(value, _LONGEST)[0] if isinstance(value, str) else value for name, value in answer.items()},
    )
