"""Which trajectories of a step are learned from."""

from typing import Any

SELECTIONS: dict[str, Any] = {}

__all__ = ["SELECTIONS"]
