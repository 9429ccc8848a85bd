"""Event loop in virtual time: its clock jumps to the next timer when no callback is ready.

Both ends of every connection are in this process, so that no other event can arrive. A loop without timers and ready
callbacks would hang, and raises an error.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from fuzzing.choices import Finding

_THREADS_SECONDS = 5.0


class _Jumping(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return list(ready)
        if timeout is not None:
            self.now += timeout
            return []
        ready = super().select(_THREADS_SECONDS)  # a thread may still be running
        if not ready:
            raise Finding("hangs: nothing will ever happen again")
        return list(ready)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop in virtual time; exceptions of its callbacks are stored in `raised`."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self.raised: list[BaseException] = []
        self.set_exception_handler(self._keep)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._jumping.now

    def _keep(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.raised.append(error if error is not None else Finding(f"loop: {context['message']}"))


def run(coroutine: Any) -> Any:
    """Run a coroutine in a new virtual loop and return its result.

    Raises:
        Exception: The exception of the coroutine, or of a callback of its loop.
    """
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(coroutine)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        if loop.raised:
            raise loop.raised[0]
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
