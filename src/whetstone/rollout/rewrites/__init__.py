"""What becomes of what was said so far."""

from typing import Any

REWRITES: dict[str, Any] = {}

__all__ = ["REWRITES"]
