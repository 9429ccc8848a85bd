"""Default methods of context transforms: actions are trained on the context they were sampled in."""

from __future__ import annotations

from typing import Literal

from whetstone.chat import Message
from whetstone.rollout.protocol import EpisodeState
from whetstone.trajectory import OffPolicy


class IdentityTransform:
    """A context transform that changes nothing."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Train actions on the context from which they were sampled."""
        return "shown"

    @property
    def off_policy(self) -> OffPolicy:
        """Return `RECOMPUTE`: both contexts are the same."""
        return OffPolicy.RECOMPUTE

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages unchanged."""
        return messages

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages unchanged."""
        return messages
