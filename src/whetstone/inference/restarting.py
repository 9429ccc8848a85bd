"""What if an engine dies? Another takes its place, after a while that grows, and the run goes on.

Requests that were in the dead one fail as infrastructure; their episodes are played again. The rows of keys are gone,
so the next turn of every episode is computed afresh.

Easy to get wrong: an engine that fails at every request must not be restarted for ever. So many times in a row without
one answer between them is the end.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from whetstone.contracts import names_of
from whetstone.errors import InfrastructureError
from whetstone.inference.protocol import (
    Engine,
    EngineAbilities,
    EngineStatistics,
    GenerateRequest,
    Generation,
    InFlight,
    ReadsText,
    Scores,
    Sleeps,
    Weights,
)
from whetstone.tokens import TokenSequence

T = TypeVar("T")

_LONGEST_BACK_OFF = 30.0


class RestartingEngine:
    """An engine that is made again when it is dead.

    Args:
        make: Makes one that draws from the weights last loaded, under the version it is given.
        heard: Told in a line of each restart.
        most: Restarts in a row without an answer between them.
        back_off_seconds: Before the first of them; twice as long before each that follows.
        first: One that is made already; None: one is made.
    """

    def __init__(
        self,
        make: Callable[[int], Engine],
        *,
        heard: Callable[[str], None] = lambda line: None,
        most: int = 5,
        back_off_seconds: float = 0.5,
        first: Engine | None = None,
    ) -> None:
        self._make, self.heard, self.most, self.back_off_seconds = make, heard, most, back_off_seconds
        self._engine = make(0) if first is None else first
        self._before = EngineStatistics()
        self._in_a_row = 0
        self._restarting = asyncio.Lock()
        self._closed = False
        self.restarts = 0
        """How often another took the place of a dead one."""

    @property
    def abilities(self) -> EngineAbilities:
        """What it gives."""
        return self._engine.abilities

    @property
    def version(self) -> int:
        """The policy version now loaded."""
        return self._engine.version

    @property
    def alive(self) -> bool:
        """Whether it can answer."""
        return not self._closed and self._in_a_row < self.most

    @property
    def stands(self) -> bool:
        """Whether the engine of now can answer, without another in its place."""
        return not self._closed and self._engine.alive

    @property
    def statistics(self) -> EngineStatistics:
        """What was done so far, by all of them."""
        now = self._engine.statistics
        summed = {field.name: getattr(self._before, field.name) + getattr(now, field.name) for field in fields(now)}
        return replace(now, **{**summed, "rows": now.rows})

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Engine.generate`."""
        engine = await self._living()
        return self._answered(await engine.generate(request))

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """See `Engine.score`."""
        engine = await self._living()
        return self._answered(await engine.score(tokens, start=start))

    def abort(self, episode: str) -> None:
        """See `Engine.abort`."""
        self._engine.abort(episode)

    def forget(self, episode: str) -> None:
        """See `Engine.forget`."""
        self._engine.forget(episode)

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """See `Engine.load_weights`."""
        while True:
            engine = await self._living()
            try:
                await engine.load_weights(weights, version, in_flight=in_flight)
                return
            except InfrastructureError:
                if engine.alive:
                    raise

    def __getattr__(self, name: str) -> Any:
        """What an engine may have beside `Engine`, where this one has it: of the one that lives when it is called."""
        if name not in names_of(ReadsText, Sleeps):
            raise AttributeError(name)
        getattr(self._engine, name)
        return functools.partial(self._of_the_living, name)

    async def close(self) -> None:
        """See `Engine.close`."""
        self._closed = True
        await self._engine.close()

    async def _of_the_living(self, name: str, *args: Any) -> Any:
        return self._answered(await getattr(await self._living(), name)(*args))

    def _answered(self, answer: T) -> T:
        self._in_a_row = 0
        return answer

    async def _living(self) -> Engine:
        """The engine, or the one that takes its place."""
        if self._closed:
            raise InfrastructureError("the engine is closed")
        async with self._restarting:
            if not self._engine.alive:
                if self._in_a_row >= self.most:
                    raise InfrastructureError(f"the engine died {self.most} times in a row; it is not made again")
                dead, pause = self._engine, min(_LONGEST_BACK_OFF, self.back_off_seconds * 2**self._in_a_row)
                self.heard(f"the engine died; another takes its place in {pause:g} s")
                await asyncio.sleep(pause)
                self._before = self.statistics
                self._engine = self._make(dead.version)
                self._in_a_row += 1
                self.restarts += 1
            return self._engine
