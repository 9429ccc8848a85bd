"""Engine that is restarted after it dies, with exponential back-off, while the run continues.

Requests to the dead engine fail as infrastructure errors, and their episodes are repeated. The KV cache is lost, so the
next turn of every episode is recomputed.

Note:
    An engine that fails at every request must not be restarted for ever. The number of consecutive restarts without a
    response is limited.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

from whetstone.capabilities import protocol_members
from whetstone.errors import InfrastructureError
from whetstone.inference.protocol import (
    Engine,
    EngineCapabilities,
    EngineStatistics,
    GenerateRequest,
    Generation,
    HasTokenizer,
    InFlight,
    ReportsLoad,
    Scores,
    SupportsSleep,
    Weights,
)
from whetstone.tokens import TokenSequence

T = TypeVar("T")

_LONGEST_BACK_OFF = 30.0
"""Maximum delay before a restart, in seconds."""


class RestartingEngine:
    """Engine that is recreated when it has died; see `Engine`.

    Args:
        make: Creates an engine with the weights last loaded, under the given policy version.
        heard: Called with one line at each restart.
        max_restarts: Maximum number of consecutive restarts without a response.
        back_off_seconds: Delay before the first of these restarts, in seconds; doubled before each further one, up to
            30 s.
        first: Existing engine to start with; None: one is created.
    """

    def __init__(
        self,
        make: Callable[[int], Engine],
        *,
        heard: Callable[[str], None] = lambda line: None,
        max_restarts: int = 5,
        back_off_seconds: float = 0.5,
        first: Engine | None = None,
    ) -> None:
        self._make, self.heard, self.max_restarts, self.back_off_seconds = make, heard, max_restarts, back_off_seconds
        self._engine = make(0) if first is None else first
        self._before = EngineStatistics()
        self._in_a_row = 0
        self._restarting = asyncio.Lock()
        self._closed = False
        self._holder: asyncio.Task[Any] | None = None
        self._in_flight = 0
        self._changed = asyncio.Event()
        self.restarts = 0
        """Number of restarts so far."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """Capabilities of the current engine."""
        return self._engine.capabilities

    @property
    def version(self) -> int:
        """Policy version of the weights of the current engine."""
        return self._engine.version

    @property
    def alive(self) -> bool:
        """Whether requests can be answered, if necessary after a restart."""
        return not self._closed and self._in_a_row < self.max_restarts

    @property
    def is_engine_alive(self) -> bool:
        """Whether the current engine can respond without a restart."""
        return not self._closed and self._engine.alive

    @property
    def statistics(self) -> EngineStatistics:
        """Counters since this object was created, summed over restarts."""
        now = self._engine.statistics
        summed = {field.name: getattr(self._before, field.name) + getattr(now, field.name) for field in fields(now)}
        return replace(now, **{**summed, "rows": now.rows})

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a continuation with the current engine, restarted if it is dead; see `Engine.generate`."""
        async with self._admitted():
            engine = await self._live_engine()
            return self._answered(await engine.generate(request))

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """Score tokens with the current engine, restarted if it is dead; see `Engine.score`."""
        async with self._admitted():
            engine = await self._live_engine()
            return self._answered(await engine.score(tokens, start=start))

    @asynccontextmanager
    async def hold_requests(self) -> AsyncIterator[None]:
        """Finish the requests in flight, and let those of other tasks wait until the block ends."""
        self._holder = asyncio.current_task()
        try:
            while self._in_flight:
                self._changed.clear()
                await self._changed.wait()
            yield
        finally:
            self._holder = None
            self._changed.set()

    def abort(self, episode: str) -> None:
        """End the generations of an episode in the current engine; see `Engine.abort`."""
        self._engine.abort(episode)

    def forget(self, episode: str) -> None:
        """Release the KV cache of a finished episode in the current engine; see `Engine.forget`."""
        self._engine.forget(episode)

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Load weights into the engine; retry with a new engine if it dies meanwhile.

        See `Engine.load_weights`.
        """
        while True:
            engine = await self._live_engine()
            try:
                await engine.load_weights(weights, version, in_flight=in_flight)
                return
            except InfrastructureError:
                if engine.alive:
                    raise

    def __getattr__(self, name: str) -> Any:
        """Return an optional method of the engine: `tokenize`, `sleep` or `measure_load`.

        The method calls the engine that is alive at the time of the call, after a restart if necessary.

        Raises:
            AttributeError: If the engine has no such method.
        """
        if name not in protocol_members(HasTokenizer, SupportsSleep, ReportsLoad):
            raise AttributeError(name)
        getattr(self._engine, name)
        return functools.partial(self._call_live_engine, name)

    async def close(self) -> None:
        """Close the current engine, which is not restarted afterwards; see `Engine.close`."""
        self._closed = True
        await self._engine.close()

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Count a request as in flight, after a hold by another task."""
        while self._holder is not None and self._holder is not asyncio.current_task():
            self._changed.clear()
            await self._changed.wait()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._changed.set()

    async def _call_live_engine(self, name: str, *args: Any) -> Any:
        return self._answered(await getattr(await self._live_engine(), name)(*args))

    def _answered(self, answer: T) -> T:
        """Reset the count of consecutive restarts and return the response."""
        self._in_a_row = 0
        return answer

    async def _live_engine(self) -> Engine:
        """Return the engine, restarted first if it is dead.

        Raises:
            InfrastructureError: If this object is closed, or the maximum number of consecutive restarts is reached.
        """
        if self._closed:
            raise InfrastructureError("the engine is closed")
        async with self._restarting:
            if not self._engine.alive:
                if self._in_a_row >= self.max_restarts:
                    raise InfrastructureError(
                        f"the engine died {self.max_restarts} times in a row; it is not restarted"
                    )
                dead, pause = self._engine, min(_LONGEST_BACK_OFF, self.back_off_seconds * 2**self._in_a_row)
                self.heard(f"the engine died; it is restarted in {pause:g} s")
                await asyncio.sleep(pause)
                self._before = self.statistics
                self._engine = self._make(dead.version)
                self._in_a_row += 1
                self.restarts += 1
            return self._engine
