"""Tools of a simulated user that act on the same state as the agent's tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

USER_TOOLS = "hands"
"""Key of the user's tools in `Episode.shared`."""


@dataclass(frozen=True, slots=True)
class UserTools:
    """Tools that an environment provides to its simulated user."""

    tools: Sequence[Callable[..., Any]]
    """Typed functions, from which tool specs are derived."""
    use: Callable[[str, Mapping[str, Any]], str]
    """Function that executes a tool: (name, arguments) → result that the user reads, which can be an error."""
