"""What is a run waiting for? When nothing has moved for a while, it says so, and goes on.

It looks from a thread of its own, so that it also sees an event loop that stands still; then it says where.
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
"""Without anything moving, before it is said; and then again after twice as long each time."""
_SHOWN = 5


class Watched(Protocol):
    """Something that goes on step by step, or episode by episode."""

    @property
    def done(self) -> int:
        """Steps made."""
        ...

    @property
    def collector(self) -> Collector | None:
        """What samples; None where nothing does."""
        ...

    def waits(self) -> list[tuple[str, str, float]]:
        """(who, what it waits for, seconds), the longest first."""
        ...


class Playing:
    """An evaluation, to be watched: no steps, only episodes."""

    done = 0

    def __init__(self) -> None:
        self.collector: Collector | None = None

    def waits(self) -> list[tuple[str, str, float]]:
        """See `Watched.waits`."""
        return self.collector.waits() if self.collector is not None else []


class Watchdog:
    """Watches a stage or an evaluation inside the block.

    Args:
        say: Told what is waited for, in a line.
        seconds: Without anything moving.
    """

    def __init__(self, work: Watched, *, say: Callable[[str], None], seconds: float = SECONDS) -> None:
        self.work, self.say, self.seconds = work, say, seconds
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
                self.say(self._line(now - since))
                patience *= 2

    def _moved(self) -> tuple[int, int]:
        collector = self.work.collector
        return self.work.done, collector.moved if collector is not None else 0

    def _line(self, seconds: float) -> str:
        waits = self.work.waits()
        said = "; ".join(f"{who} for {what} since {since:.0f} s" for who, what, since in waits[:_SHOWN])
        more = f"; and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
        frame = sys._current_frames().get(self._watched)
        at = f" The event loop is at {_place(frame)}." if frame is not None else ""
        return f"nothing has moved for {seconds:.0f} s. Waiting: {said or 'nobody'}{more}.{at}"


def _place(frame: object) -> str:
    last = traceback.extract_stack(frame)[-1]  # type: ignore[arg-type]
    return f"{last.filename}:{last.lineno} ({last.name})"
