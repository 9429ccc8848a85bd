"""A history that outgrows the context is summarised by the policy, which learns to do it well.

    … turns … → too long → "summarise" → the summary → task and summary → turns …

Each stretch is a training sequence of its own, with the trajectory's one credit; the summary is trained where it is
said, and read where it is inherited.

Easy to get wrong: the policy must be able to read what it is to summarise. Where the last turn does not fit beside the
question, it is taken out first.
"""

from __future__ import annotations

from dataclasses import dataclass

from whetstone.chat import user
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Ask, Change, EpisodeState, Reopen


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Asks for a summary when more than `tokens` are in view, and goes on behind it (SUPO).

    Where the limit is never reached, it is as if it was not there.

    Source: SUPO 2025, arXiv:2510.06727; what is taken out, and when, is ours.
    """

    tokens: int
    """In view, above which a summary is asked for."""
    max_summaries: int = 4
    """Maximum number of summaries per episode."""
    room: int = 64
    """Tokens left free in the context for question and summary."""
    question: str = "Summarise what you found out so far and what is left to do. Nothing else will be kept."
    """What the policy is asked."""
    heading: str = "What happened so far:"
    """In front of the summary."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise OptionError("tokens", f"one or more, got {self.tokens}")

    @property
    def at_evaluation(self) -> bool:
        """How an agent keeps its history belongs to it."""
        return True

    async def __call__(self, so_far: EpisodeState, /) -> Change | None:
        """See `Rewrite`."""
        last = so_far.turns[-1]
        if last.aside:
            return Reopen((*so_far.opening, user(f"{self.heading} {last.message.text}")))
        made = sum(turn.aside for turn in so_far.turns)
        if so_far.context_tokens <= self.tokens or made >= self.max_summaries:
            return None
        fits = so_far.context_tokens + self.room < so_far.context_length
        begins = max((k for k, turn in enumerate(so_far.turns) if turn.aside), default=-1) + 1
        # what this stretch began with must stay
        return Ask(self.question, drop=0 if fits or len(so_far.turns) - begins < 2 else 1)
