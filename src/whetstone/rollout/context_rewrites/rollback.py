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
from whetstone.rollout.protocol import EpisodeState, HistoryChange, PatchTurn
from whetstone.trajectory import Turn


def code_similarity(failed: str, mended: str) -> float:
    """Return the similarity of two pieces of code from 0 to 1, by Python's `difflib`.

    Source: CLEANER 2026, arXiv:2601.15141.
    """
    return SequenceMatcher(None, failed, mended).ratio()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Removes failed turns from the history once the next turn succeeds (CLEANER).

    If the failed and the corrected call are similar, the thought before the failed call is kept and only the call is
    replaced (shallow). Otherwise thought and call are replaced (deep). If no retry succeeds, the history is unchanged.

    Source: CLEANER 2026, arXiv:2601.15141; threshold, retries and exceptions are additions.
    """

    threshold: float = 0.5
    """Similarity from 0 to 1 from which only the call is replaced."""
    retries: int = 3
    """Maximum number of consecutive failed turns that are removed."""
    skip_fraction: float = 0.0
    """Fraction of episodes without rollback; 1: rollback is never used."""

    def __post_init__(self) -> None:
        if not 0 <= self.skip_fraction <= 1:
            raise OptionError("skip_fraction", f"must be from 0 to 1, got {self.skip_fraction:g}")

    @property
    def stateless_only(self) -> bool:
        """Return True: a failed call may have changed the state of the environment, which is not undone."""
        return True

    async def __call__(self, state: EpisodeState, /) -> HistoryChange | None:
        """Return a change of the episode's history, or None; see `Rewrite.__call__`."""
        last = state.turns[-1]
        episode_key = state.episode_key
        if _failed(last) or not last.calls:
            return None
        first = len(state.turns) - 1
        while first and _failed(state.turns[first - 1]):
            first -= 1
        failures = len(state.turns) - 1 - first
        if not 1 <= failures <= self.retries:
            return None
        if self.skip_fraction and episode_key.random("rollback", episode_key.index).random() < self.skip_fraction:
            return None
        return PatchTurn(
            first, self.correct_message(state.turns[first].message, last.message), last.observation, last.calls
        )

    def correct_message(self, failed: Message, after: Message) -> Message:
        """Return the message that replaces the failed turns: thought and call of `after`, or its call with the failed
        thought.
        """
        if code_similarity(_code(failed), _code(after)) < self.threshold:
            return after
        return replace(after, content=failed.content if not failed.malformed else after.content)


def _failed(turn: Turn) -> bool:
    return any(call.outcome != "ok" for call in turn.calls)


def _code(message: Message) -> str:
    return "".join(call.arguments for call in message.tool_calls) or message.text
