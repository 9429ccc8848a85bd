"""Tools of a simulated user, which act on the same state as the agent's tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

USER_TOOLS = "hands"
"""Key of the tools in `Episode.shared`."""


@dataclass(frozen=True, slots=True)
class UserTools:
    """The tools of a user."""

    tools: Sequence[Callable[..., Any]]
    """Typed functions."""
    use: Callable[[str, Mapping[str, Any]], str]
    """(name, arguments) → result that the user reads, which can be an error."""
