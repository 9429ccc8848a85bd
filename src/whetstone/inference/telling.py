"""Who hears of an answer while it is drawn, and how often? The event loop says it, at a pace the engine can afford.

Easy to get wrong: where sixty clients watch, telling each of every token costs more than drawing them does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from whetstone.inference.request import Request

_SECONDS_UNTOLD = 0.05
"""Nobody hears of an answer more often than that."""
_TOLD_A_SECOND = 300
"""Nor are more told in a second, all together."""


class Telling:
    """Says what was drawn: a first token at once, more now and then."""

    def __init__(self) -> None:
        self._under_way = False
        self._last = 0.0

    def look(self, running: Sequence[Request], loop: asyncio.AbstractEventLoop) -> None:
        """Have the event loop tell whoever is to be told something. Called behind a step, by the thread that steps."""
        if self._under_way:
            return
        news = [request for request in running if request.has_news]
        if not news:
            return
        now = time.perf_counter()
        if now >= self._last + max(_SECONDS_UNTOLD, len(news) / _TOLD_A_SECOND):
            self._last = now
        else:
            news = [request for request in news if not request.told]
        if news:
            self._under_way = True
            loop.call_soon_threadsafe(self._say, news)

    def _say(self, news: Sequence[Request]) -> None:
        self._under_way = False
        for request in news:
            if request.has_news:
                request.tell()
