"""What most views have in common: what they show is trained as it is read, and what they do not touch stays."""

from __future__ import annotations

from typing import Literal

from whetstone.chat import Message
from whetstone.rollout.protocol import EpisodeState
from whetstone.trajectory import OffPolicy


class Untouched:
    """A view that changes nothing."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Train actions on the context from which they were sampled."""
        return "shown"

    @property
    def off_policy(self) -> OffPolicy:
        """Nothing differs."""
        return OffPolicy.RECOMPUTE

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """As it is."""
        return messages

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """As it is."""
        return messages
