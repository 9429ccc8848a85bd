"""Was this task asked to stop, or did foreign code only say so?

Easy to get wrong: `asyncio.CancelledError` is no ordinary exception. Raised by a tool, an environment or a library's
own timeout it looks like a person's wish to end everything, and passes every `except Exception` on its way.
"""

from __future__ import annotations

import asyncio
import asyncio.runners


def asked_to_stop() -> bool:
    """Whether somebody cancelled the task that is running."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def pressed(error: BaseException) -> bool:
    """Whether it is a person's second Ctrl-C, raised by asyncio wherever the program is just then; the first cancels.

    A `KeyboardInterrupt` from anywhere else was raised by the code that was running.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return isinstance(error, KeyboardInterrupt) and raised_in == asyncio.runners.__file__
