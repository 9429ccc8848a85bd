"""Where the episodes of a group begin."""

from typing import Any

STARTS: dict[str, Any] = {}

__all__ = ["STARTS"]
