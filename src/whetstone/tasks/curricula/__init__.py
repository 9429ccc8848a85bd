"""Which task comes next."""

from typing import Any

CURRICULA: dict[str, Any] = {}

__all__ = ["CURRICULA"]
