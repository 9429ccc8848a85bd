"""How much a group may use: samples, turns."""

from typing import Any

ALLOCATIONS: dict[str, Any] = {}

__all__ = ["ALLOCATIONS"]
