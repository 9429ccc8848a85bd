"""What stored trajectories a group is given before it is learned from."""

from typing import Any

INJECTIONS: dict[str, Any] = {}

__all__ = ["INJECTIONS"]
