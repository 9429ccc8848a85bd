"""Was this task asked to stop, or did foreign code only say so?

Easy to get wrong: `asyncio.CancelledError` is no ordinary exception. Raised by a tool, an environment or a library's
own timeout it looks like a person's wish to end everything, and passes every `except Exception` on its way.
"""

from __future__ import annotations

import asyncio


def asked_to_stop() -> bool:
    """Whether somebody cancelled the task that is running."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
