"""What a user can do beside speaking: tools of his own, in the world of the agent's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HANDS = "hands"
"""Where `Episode.shared` has them."""


@dataclass(frozen=True, slots=True)
class Hands:
    """The tools of a user."""

    tools: Sequence[Callable[..., Any]]
    """Typed functions."""
    use: Callable[[str, Mapping[str, Any]], str]
    """(name, arguments) → what he sees; an error is one that he reads."""
