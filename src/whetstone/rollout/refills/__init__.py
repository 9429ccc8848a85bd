"""Which groups count towards those an update takes."""

from typing import Any

REFILLS: dict[str, Any] = {}

__all__ = ["REFILLS"]
