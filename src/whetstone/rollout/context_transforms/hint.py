"""Context transform that adds a hint to the prompt; training uses the context without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whetstone.chat import Message
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.protocol import EpisodeState
from whetstone.trajectory import OffPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Inserts the same hint before the task in all episodes to which a strategy applies it; see `GuidedRetry`.

    Actions are trained on the context without the hint.
    """

    text: str
    """Hint that is inserted before the task."""
    off_policy: OffPolicy = OffPolicy.CROSS_VIEW
    """Log-probs that the ratios of the actions are computed against."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Return `original`: actions are trained on the context without the hint."""
        return "original"

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Insert the hint before the task."""
        return prepend_to_task(messages, self.text)

    def observation(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages unchanged."""
        return messages
