"""Context rewrite in which the policy summarizes a history that outgrows the context, and is trained to do so.

    … turns … → too long → "summarise" → the summary → task and summary → turns …

Each part between summaries is a separate training sequence with the trajectory's advantage. A summary is trained in the
turn that writes it, and read in later ones.

Note:
    The policy must be able to read the history that it summarizes. If the last turn does not fit together with the
    question, it is removed first.
"""

from __future__ import annotations

from dataclasses import dataclass

from whetstone.chat import user
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Ask, EpisodeState, HistoryChange, RestartContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Requests a summary when the context exceeds `tokens`, and continues with the task and the summary (SUPO).

    If the limit is never reached, it has no effect.

    Source: SUPO 2025, arXiv:2510.06727; the removal of a turn is an addition.
    """

    tokens: int
    """Number of tokens in the context above which a summary is requested."""
    max_summaries: int = 4
    """Maximum number of summaries per episode."""
    room: int = 64
    """Number of tokens that must be free in the context for question and summary."""
    question: str = "Summarise what you found out so far and what is left to do. Nothing else will be kept."
    """User message that requests the summary."""
    heading: str = "What happened so far:"
    """Text before the summary in the new context."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise OptionError("tokens", f"must be at least 1, got {self.tokens}")

    @property
    def at_evaluation(self) -> bool:
        """Return True: the agent manages its history in evaluations, too."""
        return True

    async def __call__(self, state: EpisodeState, /) -> HistoryChange | None:
        """Return a change of the episode's history, or None; see `Rewrite.__call__`."""
        last = state.turns[-1]
        if last.aside:
            return RestartContext((*state.opening, user(f"{self.heading} {last.message.text}")))
        num_summaries = sum(turn.aside for turn in state.turns)
        if state.context_tokens <= self.tokens or num_summaries >= self.max_summaries:
            return None
        fits = state.context_tokens + self.room < state.context_length
        begins = max((k for k, turn in enumerate(state.turns) if turn.aside), default=-1) + 1
        # the first turn after a summary must stay
        return Ask(self.question, drop=0 if fits or len(state.turns) - begins < 2 else 1)
