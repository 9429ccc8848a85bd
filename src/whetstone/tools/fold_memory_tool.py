"""Tool `fold_memory`, with which the agent decides when its history is replaced by a memory."""

from __future__ import annotations

from whetstone.tools.side_effects import effects


@effects("read")
def fold_memory() -> str:
    """Fold what happened so far into a short memory and go on with that alone."""
    return "folded"
