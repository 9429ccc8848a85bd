"""A hint at the beginning, which training does not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whetstone.chat import Message
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.protocol import EpisodeState
from whetstone.trajectory import OffPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """The same text for whoever is given it; a strategy decides who. See `GuidedRetry`."""

    text: str
    """In front of the task."""
    off_policy: OffPolicy = OffPolicy.CROSS_VIEW
    """What ratios compare with."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Train actions on the context without the hint."""
        return "original"

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """The hint in front of the task."""
        return noted(messages, self.text)

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """As they are."""
        return messages
