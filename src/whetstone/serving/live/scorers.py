"""What does that which follows an answer say of it? How good it was, and what would have helped.

Easy to get wrong: most answers are followed by something that says nothing of them. Of those nothing is said, rather
than that they were good.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from whetstone.chat import Message
from whetstone.ranges import Share


@dataclass(frozen=True, slots=True)
class Followed:
    """An answer between what stood before it and what came behind."""

    asked: tuple[Message, ...]
    """The whole conversation up to the answer."""
    answer: Message
    following: tuple[Message, ...]
    """What tools or the user said next, one message or more."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of an answer."""

    reward: float = 0.0
    """Above 0 it becomes likelier, below 0 less likely."""
    hint: str = ""
    """What would have helped, in words the policy could have read; empty: nothing."""
    why: str = ""
    """In a few words, for whoever looks at what is learned."""

    @property
    def teaches(self) -> bool:
        """Whether there is anything in it to learn from."""
        return self.reward != 0 or bool(self.hint)


Scorer = Callable[[Followed], Judgement | Awaitable[Judgement]]
"""What followed an answer → what is said of it."""

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
    followed: Followed,
    *,
    corrections: Sequence[str] = CORRECTIONS,
    thanks: Sequence[str] = THANKS,
    same: Share = 0.8,
) -> Judgement:
    """What plain signs say, the first that is found:

    a tool's error, or tests that failed     −1, and what the tool said as the hint
    tests that passed                        +1
    a correction at the user's beginning     −1, and what he said as the hint
    the same question once more              −1
    thanks at the user's beginning           +1
    anything else                            nothing

    Args:
        followed: The answer and what came behind it.
        corrections: Words a message that corrects has in its first sentence, in any case of letters.
        thanks: Words of one that is content.
        same: From which likeness on, from 0 to 1, two questions are the same.

    Source: Wang et al. 2026 (OpenClaw-RL), arXiv:2603.10165, in which a model judges; these rules stand for it.
    """
    tools = "\n".join(message.text for message in followed.following if message.role == "tool")
    if tools and _FAILED.search(tools):
        return Judgement(-1.0, _short(tools), "a tool failed")
    if tools and _PASSED.search(tools):
        return Judgement(1.0, "", "tests passed")
    said = next((message.text for message in followed.following if message.role == "user"), "")
    before = next((message.text for message in reversed(followed.asked) if message.role == "user"), "")
    first = re.split(r"[.!?\n]", said.strip(), maxsplit=1)[0]
    if followed.answer.text.rstrip().endswith("?"):  # then yes and no answer it
        corrections, thanks = ([word for word in words if word not in _REPLIES] for words in (corrections, thanks))
    if (word := _found(first, corrections)) is not None:
        return Judgement(-1.0, _short(said), f'corrected ("{word}")')
    if said and difflib.SequenceMatcher(None, before.lower(), said.lower()).ratio() >= same:
        return Judgement(-1.0, "", "asked the same again")
    if (word := _found(first, thanks)) is not None:
        return Judgement(1.0, "", f'thanked ("{word}")')
    return Judgement(why="nothing is known of it")


def _found(text: str, words: Sequence[str]) -> str | None:
    lowered = text.lower().replace("\u2019", "'")
    return next((word for word in words if re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", lowered)), None)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_HINT else f"{text[: _LONGEST_HINT - 1]}…"


SCORERS: Mapping[str, Scorer] = {"by_rules": by_rules}
"""By the name a recipe has for it."""
