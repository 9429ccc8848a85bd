"""Watchdog: reports which components a run waits for if there is no progress for a while; the run continues.

It runs in a separate thread, so that it also detects a blocked event loop and reports its location.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from whetstone.rollout import Collector

SECONDS = 60.0
"""Time without progress before the first report, in seconds; doubled before each further report."""
_SHOWN = 5


class Monitored(Protocol):
    """Work with steps or episodes that the watchdog monitors: a `Stage` or an `EvaluationMonitor`."""

    @property
    def done(self) -> int:
        """Number of steps made."""
        ...

    @property
    def collector(self) -> Collector | None:
        """Collector of sampled episodes; None if nothing is sampled."""
        ...

    def waits(self) -> list[tuple[str, str, float]]:
        """Return the current waits: (component, awaited component, seconds).

        The longest wait is first.
        """
        ...


class EvaluationMonitor:
    """Evaluation as the watchdog monitors it: without steps, only with episodes."""

    done = 0

    def __init__(self) -> None:
        self.collector: Collector | None = None

    def waits(self) -> list[tuple[str, str, float]]:
        """Return the waits of the collector; see `Monitored.waits`."""
        return self.collector.waits() if self.collector is not None else []


class Watchdog:
    """Monitors a stage or an evaluation within the `with` block.

    Args:
        work: Work to monitor.
        log: Receives one line about the waits.
        seconds: Time without progress before a report, in seconds.
    """

    def __init__(self, work: Monitored, *, log: Callable[[str], None], seconds: float = SECONDS) -> None:
        self.work, self.log, self.seconds = work, log, seconds
        self._stop = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, since, patience = self._moved(), time.monotonic(), self.seconds
        while not self._stop.wait(min(1.0, self.seconds / 4)):
            now, moved = time.monotonic(), self._moved()
            if moved != seen:
                seen, since, patience = moved, now, self.seconds
            elif now - since >= patience:
                self.log(self._line(now - since))
                patience *= 2

    def _moved(self) -> tuple[int, int]:
        collector = self.work.collector
        return self.work.done, collector.moved if collector is not None else 0

    def _line(self, seconds: float) -> str:
        waits = self.work.waits()
        text = "; ".join(f"{who} for {what} since {since:.0f} s" for who, what, since in waits[:_SHOWN])
        more = f"; and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
        frame = sys._current_frames().get(self._watched)
        at = f" The event loop is at {_place(frame)}." if frame is not None else ""
        return f"no progress for {seconds:.0f} s. Waiting: {text or 'none'}{more}.{at}"


def _place(frame: object) -> str:
    last = traceback.extract_stack(frame)[-1]  # type: ignore[arg-type]
    return f"{last.filename}:{last.lineno} ({last.name})"
