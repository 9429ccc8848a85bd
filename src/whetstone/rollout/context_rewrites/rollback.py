"""Context rewrite that replaces a failed call by its corrected retry.

    call → error → corrected call → result      becomes      corrected call → result

Note:
    Text that the policy sampled after the error is now trained in a context without it. Its sampling log-probs do not
    apply there; the learner recomputes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Change, EpisodeState, PatchTurn
from whetstone.trajectory import Turn


def code_similarity(failed: str, mended: str) -> float:
    """Return the similarity of two pieces of code, 0 to 1.

    Source: CLEANER 2026, arXiv:2601.15141, by Python's `difflib`.
    """
    return SequenceMatcher(None, failed, mended).ratio()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Failed turns are removed once the next one succeeds (CLEANER).

    If both calls are similar, the thought before the failed call stays and only the call is replaced (shallow); else
    thought and call are the later ones (deep). If no retry succeeds, everything stays.

    Source: CLEANER 2026, arXiv:2601.15141; threshold, retries and exceptions are additions.
    """

    threshold: float = 0.5
    """Similarity from which only the call is replaced."""
    retries: int = 3
    """Maximum number of consecutive failed turns that are removed."""
    skip_fraction: float = 0.0
    """Fraction of episodes without rollback. 1 is independent sampling."""

    def __post_init__(self) -> None:
        if not 0 <= self.skip_fraction <= 1:
            raise OptionError("skip_fraction", f"must be 0 to 1, got {self.skip_fraction:g}")

    @property
    def stateless_only(self) -> bool:
        """Return True: a failed call may have changed the state of the environment."""
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
        return PatchTurn(
            first, self.correct_message(so_far.turns[first].message, last.message), last.observation, last.calls
        )

    def correct_message(self, failed: Message, after: Message) -> Message:
        """Return the corrected message."""
        if code_similarity(_code(failed), _code(after)) < self.threshold:
            return after
        return replace(after, content=failed.content if not failed.malformed else after.content)


def _failed(turn: Turn) -> bool:
    return any(call.outcome != "ok" for call in turn.calls)


def _code(message: Message) -> str:
    return "".join(call.arguments for call in message.tool_calls) or message.text
