"""Hosts of games: execute the methods of one game in the place that its isolation requires.

    object     called in the episode's thread
    thread     called in a thread that belongs to the game until `close`, and to another game afterwards
    process    called in a worker process; see `workers.py`

Note:
    A caller that is canceled (a deadline passed) leaves a thread in the middle of a call. Such a thread is never
    reused. A process is killed.
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
from whetstone.tools.thread_runner import with_result


class Host(Protocol):
    """Interface of a host: a game and the place in which its methods are executed.

    `GameEnvironment` creates a host per episode.
    """

    async def call_method(self, method: str, *arguments: Any) -> Any:
        """Call a method of the game; return its result or raise its exception.

        Args:
            method: Name of the method.
            arguments: Positional arguments of the call.

        Raises:
            InfrastructureError: If the worker process of the game died.
        """
        ...

    async def close(self) -> None:
        """Close the game and release its thread or process; idempotent."""
        ...


def create_host(make: Callable[[], Game], isolation: Isolation) -> Host:
    """Return a host for a new game.

    Args:
        make: Factory of the game.
        isolation: `object`, `thread` or `process`; see `Isolation`.
    """
    if isolation == "process":
        return ProcessHost(make)
    return ThreadHost(make) if isolation == "thread" else ObjectHost(make)


class ObjectHost:
    """Host that calls a game directly, in the thread of the episode."""

    def __init__(self, make: Callable[[], Game]) -> None:
        self.game: Game | None = make()
        COUNTS.open_games += 1

    async def call_method(self, method: str, *arguments: Any) -> Any:
        """Call a method of the game in the episode's thread; see `Host`."""
        return getattr(self.game, method)(*arguments)

    async def close(self) -> None:
        """Close the game; later calls of `close` do nothing. See `Host`."""
        game, self.game = self.game, None
        if game is not None:
            COUNTS.open_games -= 1
            game.close()


class _Thread:
    """A thread that executes calls one after another; reused for the next game."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="game", daemon=True).start()
        COUNTS.threads += 1

    def _serve(self) -> None:
        """Execute the calls in the inbox one after another until `end` is called."""
        while (work := self.inbox.get()) is not None:
            work()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Execute a function in the thread; return its result or raise its exception."""
        work, future = with_result(lambda: function(*arguments))
        self.inbox.put(work)
        return await future

    def end(self) -> None:
        """End the thread after the calls that are already in its queue."""
        self.inbox.put(None)
        COUNTS.threads -= 1


_idle: list[_Thread] = []
_MAX_IDLE = 64


class ThreadHost:
    """Host that calls a game in a thread that no other game uses until it is closed."""

    def __init__(self, make: Callable[[], Game]) -> None:
        self.make = make
        self.game: Game | None = None
        self.thread: _Thread | None = _idle.pop() if _idle else _Thread()
        COUNTS.open_games += 1

    async def call_method(self, method: str, *arguments: Any) -> Any:
        """Call a method of the game in its thread.

        The first call creates the game. See `Host`. If the caller is canceled during the call, the thread is abandoned
        and the host is closed.

        Raises:
            RuntimeError: If the host is closed.
        """
        if self.thread is None:
            raise RuntimeError("the game is closed; reset its environment first")
        try:
            return await self.thread.call(self._call_game, method, arguments)
        except asyncio.CancelledError:
            self._abandon()
            raise

    async def close(self) -> None:
        """Close the game and return its thread to the pool of idle threads; see `Host`."""
        thread, self.thread = self.thread, None
        if thread is None:
            return
        COUNTS.open_games -= 1
        try:
            await thread.call(self._close_game)
        finally:
            if len(_idle) < _MAX_IDLE:
                _idle.append(thread)
            else:
                thread.end()

    def _call_game(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self.game is None:
            self.game = self.make()
        return getattr(self.game, method)(*arguments)

    def _close_game(self) -> None:
        game, self.game = self.game, None
        if game is not None:
            game.close()

    def _abandon(self) -> None:
        """Give up a thread that is in the middle of a call.

        After the call, the thread closes the game and ends.
        """
        thread, self.thread = self.thread, None
        if thread is not None:
            COUNTS.open_games -= 1
            COUNTS.abandoned += 1
            thread.inbox.put(self._close_game)
            thread.end()
