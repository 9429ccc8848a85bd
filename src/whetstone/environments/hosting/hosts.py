"""One game, wherever it runs: asked by the name of a method, answered or failed.

    object     called where the episode runs
    thread     called in a thread that is the game's from `begin` to `close`, and another's afterwards
    process    called in a worker process; see `workers.py`

Easy to get wrong: a caller who gives up (a deadline passed) leaves a thread in the middle of a call. Such a thread is
never given to another game. A process is killed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from whetstone.environments.hosting.counts import COUNTS
from whetstone.environments.hosting.workers import ProcessHost
from whetstone.environments.protocol import Game, Isolation
from whetstone.tools.threads import answered


class Host(Protocol):
    """A game and where it runs."""

    async def ask(self, method: str, *arguments: Any) -> Any:
        """What a method of the game returns or raises.

        Raises:
            InfrastructureError: What it runs in is gone.
        """
        ...

    async def close(self) -> None:
        """Close the game, and let go of where it ran. Twice is as good as once."""
        ...


def host_of(make: Callable[[], Game], isolation: Isolation) -> Host:
    """A game of its own, in what its isolation asks for."""
    if isolation == "process":
        return ProcessHost(make)
    return ThreadHost(make) if isolation == "thread" else ObjectHost(make)


class ObjectHost:
    """In the episode's own thread."""

    def __init__(self, make: Callable[[], Game]) -> None:
        self.game: Game | None = make()
        COUNTS.open_games += 1

    async def ask(self, method: str, *arguments: Any) -> Any:
        """See `Host`."""
        return getattr(self.game, method)(*arguments)

    async def close(self) -> None:
        """See `Host`."""
        game, self.game = self.game, None
        if game is not None:
            COUNTS.open_games -= 1
            game.close()


class _Thread:
    """A thread that does one call after the other."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="game", daemon=True).start()
        COUNTS.threads += 1

    def _serve(self) -> None:
        while (work := self.inbox.get()) is not None:
            work()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What it returns or raises there."""
        work, future = answered(lambda: function(*arguments))
        self.inbox.put(work)
        return await future

    def end(self) -> None:
        """No more calls after those it was given."""
        self.inbox.put(None)
        COUNTS.threads -= 1


_idle: list[_Thread] = []
_MOST_IDLE = 64


class ThreadHost:
    """In a thread that is the game's alone as long as it is open."""

    def __init__(self, make: Callable[[], Game]) -> None:
        self.make = make
        self.game: Game | None = None
        self.thread: _Thread | None = _idle.pop() if _idle else _Thread()
        COUNTS.open_games += 1

    async def ask(self, method: str, *arguments: Any) -> Any:
        """See `Host`."""
        if self.thread is None:
            raise RuntimeError("a closed game was asked")
        try:
            return await self.thread.call(self._asked, method, arguments)
        except asyncio.CancelledError:
            self._abandon()
            raise

    async def close(self) -> None:
        """See `Host`."""
        thread, self.thread = self.thread, None
        if thread is None:
            return
        COUNTS.open_games -= 1
        try:
            await thread.call(self._closed)
        finally:
            if len(_idle) < _MOST_IDLE:
                _idle.append(thread)
            else:
                thread.end()

    def _asked(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self.game is None:
            self.game = self.make()
        return getattr(self.game, method)(*arguments)

    def _closed(self) -> None:
        game, self.game = self.game, None
        if game is not None:
            game.close()

    def _abandon(self) -> None:
        """The thread is in the middle of something: when that is over it closes the game and ends."""
        thread, self.thread = self.thread, None
        if thread is not None:
            COUNTS.open_games -= 1
            COUNTS.abandoned += 1
            thread.inbox.put(self._closed)
            thread.end()
