"""Who answers the policy in the environment's place."""

from typing import Any

PARTNERS: dict[str, Any] = {}

__all__ = ["PARTNERS"]
