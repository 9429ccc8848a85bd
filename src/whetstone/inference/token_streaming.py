"""Streams partial generations to `on_tokens` callbacks on the event loop, rate-limited.

Note:
    With sixty clients, a callback per token costs more than sampling the tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from whetstone.inference.request import Request

_MIN_INTERVAL_SECONDS = 0.05
"""Time between two callbacks of a generation."""
_MAX_CALLBACKS_PER_SECOND = 300
"""Callbacks of all generations together."""


class TokenStreamer:
    """Calls `on_tokens` of running generations: with the first token at once, with more from time to time."""

    def __init__(self) -> None:
        self._is_scheduled = False
        self._last = 0.0

    def schedule_callbacks(self, running: Sequence[Request], loop: asyncio.AbstractEventLoop) -> None:
        """Schedule due callbacks on the event loop.

        Called after a step, in the thread that computes it.
        """
        if self._is_scheduled:
            return
        due = [request for request in running if request.has_unstreamed]
        if not due:
            return
        now = time.perf_counter()
        if now >= self._last + max(_MIN_INTERVAL_SECONDS, len(due) / _MAX_CALLBACKS_PER_SECOND):
            self._last = now
        else:
            due = [request for request in due if not request.streamed]
        if due:
            self._is_scheduled = True
            loop.call_soon_threadsafe(self._stream, due)

    def _stream(self, due: Sequence[Request]) -> None:
        self._is_scheduled = False
        for request in due:
            if request.has_unstreamed:
                request.stream()
