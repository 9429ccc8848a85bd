"""Tools that end the episode: `submit` with a final answer, `finish` without one."""

from __future__ import annotations

from whetstone.errors import ToolStop
from whetstone.tools.side_effects import effects


@effects("read")
def submit(answer: str) -> str:
    """Give the final answer; nothing can be done after it.

    Args:
        answer: The answer alone.
    """
    raise ToolStop(answer)


@effects("read")
def finish() -> str:
    """End here, when everything asked for is done."""
    raise ToolStop("done")
