"""Scorers of online learning: judge an answer from the messages that follow it (reward and hint).

Note:
    Most answers are followed by messages without feedback. Such answers receive no judgement rather than a positive
    one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from whetstone.bounded_types import Share
from whetstone.chat import Message


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Input of a scorer: an answer with the messages before and after it."""

    messages: tuple[Message, ...]
    """The whole conversation before the answer."""
    answer: Message
    """The answer to judge."""
    following: tuple[Message, ...]
    """The next messages of tools or the user, at least one."""

    def __getattr__(self, name: str) -> tuple[Message, ...]:
        """Return `messages` by its earlier name, which a scorer of your own may use."""
        if name == "asked":
            return self.messages
        raise AttributeError(name)


@dataclass(frozen=True, slots=True)
class Feedback:
    """Result of a scorer: reward and hint of an answer; without both the answer is not trained on."""

    reward: float = 0.0
    """Reward; a positive one makes the answer more likely, a negative one less likely."""
    hint: str = ""
    """Text that would have led to a better answer if the policy had read it; empty without a hint."""
    why: str = ""
    """Short reason, for people who inspect the training data."""

    @property
    def is_trainable(self) -> bool:
        """Return whether the feedback has a reward other than 0 or a hint, so that the answer is trained on."""
        return self.reward != 0 or bool(self.hint)


Followed, Judgement = FollowUp, Feedback
"""Earlier names, for scorers of your own."""
Scorer = Callable[[FollowUp], Feedback | Awaitable[Feedback]]
"""Function from an answer with the messages after it to a judgement."""

CORRECTIONS = (
    "no", "nope", "wrong", "incorrect", "not what", "not right", "not correct", "i meant", "i said", "should be",
    "should have", "instead", "actually", "try again", "that's not", "doesn't work", "does not work",
)  # fmt: skip
THANKS = (
    "thanks", "thank you", "perfect", "great", "exactly", "well done", "correct", "right", "yes", "works", "awesome",
)  # fmt: skip
_REPLIES = ("no", "nope", "yes", "right", "correct")
_FAILED = re.compile(
    r"^\s*(?:[\w.]*(?:Error|Exception)\b|error\b|traceback \(most recent call last\)|fatal\b)"
    r"|\bexit (?:status|code):? [1-9]|\b[1-9]\d* (?:failed|errors?)\b",
    re.IGNORECASE | re.MULTILINE,
)
_PASSED = re.compile(r"\b[1-9]\d* passed\b|\ball tests pass", re.IGNORECASE)
_LONGEST_HINT = 500


def by_rules(
    followed: FollowUp,
    *,
    corrections: Sequence[str] = CORRECTIONS,
    thanks: Sequence[str] = THANKS,
    same: Share = 0.8,
) -> Feedback:
    """Judge an answer by simple rules; the first that matches decides:

        a tool's error, or failed tests               −1, with the tool's output as hint
        passed tests                                  +1
        a correction in the user's first sentence     −1, with the user's message as hint
        the same question again                       −1
        thanks in the user's first sentence           +1
        anything else                                 no judgement

    Args:
        followed: The answer and the messages after it.
        corrections: Words that mark a correction in the first sentence of a message, in any case of letters.
        thanks: Words that mark a satisfied message.
        same: Minimum similarity, from 0 to 1, at which two questions count as the same.

    Source: Wang et al. 2026 (OpenClaw-RL), arXiv:2603.10165, in which a model judges; these rules replace it.
    """
    tools = "\n".join(message.text for message in followed.following if message.role == "tool")
    if tools and _FAILED.search(tools):
        return Feedback(-1.0, _truncate(tools), "a tool failed")
    if tools and _PASSED.search(tools):
        return Feedback(1.0, "", "tests passed")
    reply = next((message.text for message in followed.following if message.role == "user"), "")
    before = next((message.text for message in reversed(followed.messages) if message.role == "user"), "")
    first = re.split(r"[.!?\n]", reply.strip(), maxsplit=1)[0]
    if followed.answer.text.rstrip().endswith("?"):  # then yes and no are replies to a question
        corrections, thanks = ([word for word in words if word not in _REPLIES] for words in (corrections, thanks))
    if (word := _find_word(first, corrections)) is not None:
        return Feedback(-1.0, _truncate(reply), f'corrected ("{word}")')
    if reply and difflib.SequenceMatcher(None, before.lower(), reply.lower()).ratio() >= same:
        return Feedback(-1.0, "", "asked the same again")
    if (word := _find_word(first, thanks)) is not None:
        return Feedback(1.0, "", f'thanked ("{word}")')
    return Feedback(why="nothing is known of it")


def _find_word(text: str, words: Sequence[str]) -> str | None:
    lowered = text.lower().replace("\u2019", "'")
    return next((word for word in words if re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", lowered)), None)


def _truncate(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_HINT else f"{text[: _LONGEST_HINT - 1]}…"


SCORERS: Mapping[str, Scorer] = {"by_rules": by_rules}
"""Scorers by their name in a recipe."""
