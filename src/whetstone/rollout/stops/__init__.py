"""When an episode is to end before its time."""

from typing import Any

STOPS: dict[str, Any] = {}

__all__ = ["STOPS"]
