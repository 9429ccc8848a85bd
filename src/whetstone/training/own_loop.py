"""How is a coroutine run to its end, wherever one is? In a loop of this thread, or, where one is running already as in
a notebook, in a thread with a loop of its own.

Easy to get wrong: signals reach the main thread alone. Where that one only waits, Ctrl-C has to be handed on, or a run
could neither be stopped nor saved.
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
"""A signal that another thread was given is only heard here when this one wakes up."""


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
    ways = [ask_to_stop] if ask_to_stop is not None else []

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await work()

    def asked(number: int, frame: FrameType | None) -> None:
        for loop, task in running:
            loop.call_soon_threadsafe(ways.pop() if ways else task.cancel)

    with ThreadPoolExecutor(1, thread_name_prefix="run") as thread, _interrupted_by(asked):
        try:
            outcome = thread.submit(copy_context().run, asyncio.run, watched())
            while not outcome.done():
                wait([outcome], timeout=_SECONDS_BETWEEN_LOOKS)
            return outcome.result()
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


@contextlib.contextmanager
def _interrupted_by(asked: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C inside the block calls this, where signals come to this thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
