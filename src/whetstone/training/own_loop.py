"""How is a coroutine run to its end, wherever one is? In a loop of this thread, or, where one is running already as in
a notebook, in a thread with a loop of its own.

Easy to get wrong: signals reach the main thread alone. Where that one only waits, Ctrl-C has to be handed on, or a run
could neither be stopped nor saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(work: Callable[[], Coroutine[Any, Any, T]], *, ask_to_stop: Callable[[], None] | None = None) -> T:
    """What `work` returns or raises.

    Args:
        ask_to_stop: Called once in the loop where Ctrl-C came while another thread ran it; a second Ctrl-C cancels
            the work. None: the first does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await work()

    with ThreadPoolExecutor(1, thread_name_prefix="run") as thread:
        outcome = thread.submit(copy_context().run, asyncio.run, watched())
        while True:
            try:
                return outcome.result()
            except KeyboardInterrupt:
                if outcome.done():
                    raise
                for loop, task in running:
                    loop.call_soon_threadsafe(ask_to_stop or task.cancel)
                ask_to_stop = None
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
