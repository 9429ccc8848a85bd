"""Distinguishes cancellation and Ctrl-C from exceptions that untrusted code raises.

Note:
    `asyncio.CancelledError` is not an `Exception`. If a tool, an environment or a library's timeout raises it, it looks
    like a request to stop everything, and passes every `except Exception`.
"""

from __future__ import annotations

import asyncio
import asyncio.runners


def is_cancellation_requested() -> bool:
    """Return whether the running asyncio task was cancelled by its owner.

    False if a `CancelledError` was raised by the code that the task runs.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_second_interrupt(error: BaseException) -> bool:
    """Return whether an exception is the user's second Ctrl-C; the first one cancels.

    asyncio raises the second `KeyboardInterrupt` wherever the program is at that moment. A `KeyboardInterrupt` from
    anywhere else was raised by the running code.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return isinstance(error, KeyboardInterrupt) and raised_in == asyncio.runners.__file__
