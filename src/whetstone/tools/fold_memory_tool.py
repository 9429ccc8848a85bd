"""Tool `fold_memory`: the agent decides when its history is folded into a memory."""

from __future__ import annotations

from whetstone.tools.side_effects import effects


@effects("read")
def fold_memory() -> str:
    """Fold what happened so far into a short memory and go on with that alone."""
    return "folded"
