"""A call that failed and was then mended: as if it had been right at once.

    call → error → call, mended → answer      becomes      call, mended → answer

Easy to get wrong: what the policy said under the error is now trained where the error is not. No log-prob from when it
was drawn holds there; the learner measures it anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Change, EpisodeState, Repair
from whetstone.trajectory import Turn


def similarity(failed: str, mended: str) -> float:
    """How alike two pieces of code are, 0 to 1.

    Source: CLEANER 2026, arXiv:2601.15141, by Python's `difflib`.
    """
    return SequenceMatcher(None, failed, mended).ratio()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Turns that failed are taken back once the next succeeds (CLEANER).

    Where the two are alike the thought in front of the failed call stays and only the call is replaced (shallow); else
    thought and call are the later ones (deep). Where no retry succeeds, everything stays.

    Source: CLEANER 2026, arXiv:2601.15141; threshold, retries and what is left alone are ours.
    """

    threshold: float = 0.5
    """Similarity from which only the call is replaced."""
    retries: int = 3
    """Failed turns in a row that are taken back."""
    skip_fraction: float = 0.0
    """Fraction of episodes without rollback. 1 is independent sampling."""

    def __post_init__(self) -> None:
        if not 0 <= self.skip_fraction <= 1:
            raise OptionError("skip_fraction", f"0 to 1, got {self.skip_fraction:g}")

    @property
    def stateless_only(self) -> bool:
        """A failed call may have changed a world that remembers."""
        return True

    async def __call__(self, so_far: EpisodeState, /) -> Change | None:
        """See `Rewrite`."""
        last = so_far.turns[-1]
        occasion = so_far.occasion
        if _failed(last) or not last.calls:
            return None
        first = len(so_far.turns) - 1
        while first and _failed(so_far.turns[first - 1]):
            first -= 1
        failures = len(so_far.turns) - 1 - first
        if not 1 <= failures <= self.retries:
            return None
        if self.skip_fraction and occasion.random("rollback", occasion.index).random() < self.skip_fraction:
            return None
        return Repair(first, self.mended(so_far.turns[first].message, last.message), last.observation, last.calls)

    def mended(self, failed: Message, after: Message) -> Message:
        """What is said to have been said."""
        if similarity(_code(failed), _code(after)) < self.threshold:
            return after
        return replace(after, content=failed.content if not failed.malformed else after.content)


def _failed(turn: Turn) -> bool:
    return any(call.outcome != "ok" for call in turn.calls)


def _code(message: Message) -> str:
    return "".join(call.arguments for call in message.tool_calls) or message.text
