"""What the policy reads beside what the environment said."""

from typing import Any

VIEWS: dict[str, Any] = {}

__all__ = ["VIEWS"]
