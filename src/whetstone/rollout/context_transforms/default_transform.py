"""Default methods of context transforms: actions are trained on the context they were sampled in."""

from __future__ import annotations

from typing import Literal

from whetstone.chat import Message
from whetstone.rollout.protocol import EpisodeState
from whetstone.trajectory import OffPolicy


class IdentityTransform:
    """Base class of context transforms: changes no message, and trains on the sampled context."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Return `shown`: actions are trained on the context in which they were sampled."""
        return "shown"

    @property
    def off_policy(self) -> OffPolicy:
        """Return `RECOMPUTE`; it has no effect, because sampled and training context are equal."""
        return OffPolicy.RECOMPUTE

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages unchanged."""
        return messages

    def observation(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages unchanged."""
        return messages
