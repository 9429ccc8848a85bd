"""Synchronous execution of a coroutine, also while an event loop is running (notebooks).

Note:
    Only the main thread receives signals. If it waits for a second thread, it must forward Ctrl-C, or a run could be
    neither stopped nor saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_SECONDS_BETWEEN_LOOKS = 0.2
"""Polling interval in seconds. The main thread handles a signal only when it wakes up."""


def run_sync(work: Callable[[], Coroutine[Any, Any, T]], *, ask_to_stop: Callable[[], None] | None = None) -> T:
    """Run a coroutine to its end in this thread, and return its result.

    If an event loop is already running here (a notebook), the coroutine runs in a second thread.

    Args:
        work: Function that creates the coroutine.
        ask_to_stop: Callback for the first Ctrl-C if a second thread runs the coroutine; a second Ctrl-C cancels it.
            None: the first Ctrl-C cancels it.

    Raises:
        KeyboardInterrupt: If the coroutine was cancelled by Ctrl-C.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    ways = [ask_to_stop] if ask_to_stop is not None else []

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await work()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        for loop, task in running:
            loop.call_soon_threadsafe(ways.pop() if ways else task.cancel)

    with ThreadPoolExecutor(1, thread_name_prefix="run") as thread, _interrupted_by(on_interrupt):
        try:
            outcome = thread.submit(copy_context().run, asyncio.run, watched())
            while not outcome.done():
                wait([outcome], timeout=_SECONDS_BETWEEN_LOOKS)
            return outcome.result()
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


@contextlib.contextmanager
def _interrupted_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block, call the handler on Ctrl-C if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
