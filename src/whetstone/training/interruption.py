"""Signals that stop a run: the update is finished, sampled episodes are parked, the run is saved.

The first SIGTERM, SIGINT or SIGHUP stops the run this way; the second one ends the process immediately. Both leave a
run that resumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP arrives when the terminal is closed."""
GRACE_SECONDS = 60.0
"""Maximum time for finishing and saving after the first signal, in seconds."""


class Interrupted(Exception):
    """Raised when the run was interrupted by a signal; the run is saved.

    Args:
        message: Text for the user.
        signal: Number of the received signal.
    """

    def __init__(self, message: str = "stopped", *, signal: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = int(signal)


class Interruption:
    """Handles stop signals within the `with` block; outside the main thread no signal is received.

    Args:
        grace_seconds: Maximum time for finishing and saving after the first signal, in seconds.
    """

    def __init__(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self.grace_seconds = grace_seconds
        self._asked: asyncio.Event = asyncio.Event()
        self._since = 0.0
        self._signal: int = signal.SIGINT
        self._listening = False

    def __enter__(self) -> Interruption:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            for number in _SIGNALS:
                loop.add_signal_handler(number, self.request_stop, number)
            self._listening = True
        return self

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._listening:
            for number in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)

    def request_stop(self, number: int) -> None:
        """Request that the run stops, as a signal handler does; the second call ends the process.

        Args:
            number: Number of the signal.
        """
        if self._asked.is_set():
            os._exit(128 + number)
        self._since, self._signal = time.perf_counter(), number
        self._asked.set()

    @property
    def seconds_left(self) -> float:
        """Remaining time for finishing and saving, in seconds; at least 0."""
        return max(0.0, self.grace_seconds - (time.perf_counter() - self._since))

    async def unless_asked(self, work: Coroutine[Any, Any, T], *, finish: Callable[[], bool]) -> T:
        """Await `work` and return its result, unless the run is interrupted.

        Args:
            work: Coroutine of the training loop, such as a step.
            finish: Returns whether running work may finish within the remaining time, rather than be cancelled.

        Raises:
            Interrupted: If the run was interrupted before the work was finished; the work was cancelled, or not
                started.
        """
        if self._asked.is_set():
            work.close()
            raise Interrupted(signal=self._signal)
        requested = asyncio.ensure_future(self._asked.wait())
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([requested, working], return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and finish():
                await asyncio.wait([working], timeout=self.seconds_left)
            if working.done():
                return working.result()
            raise Interrupted(signal=self._signal)
        finally:
            for task in (requested, working):
                task.cancel()
            await asyncio.gather(requested, working, return_exceptions=True)
