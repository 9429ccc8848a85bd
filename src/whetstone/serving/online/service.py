"""Service that serves a policy and trains it online: its components, built from a recipe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from whetstone.assembly import assemble
from whetstone.assembly.instantiate import build_function
from whetstone.data.redacting import Redacting
from whetstone.data.sensitive import find_redactor
from whetstone.recipe import Resolved
from whetstone.serving.api_keys import Keys
from whetstone.serving.app import Server, build_serving_app
from whetstone.serving.episodes import Episodes
from whetstone.serving.generate import CompletionService
from whetstone.serving.human_in_the_loop import PeopleQueue, people_routes
from whetstone.serving.online.online_learner import OnlineLearner
from whetstone.serving.online.online_routes import live_routes
from whetstone.serving.online.scorers import SCORERS
from whetstone.serving.online.weights import convert_live_recipe, live_settings


class LiveService:
    """ASGI application that serves a policy; inside `async with` it also trains it.

    Args:
        resolved: The recipe; its `live` specifies the training.
        folder: Run directory; an existing run is resumed.
        name: Name of the model for clients.
        say: Receives important events, one line each.

    Raises:
        WhetstoneError: See `assemble`; or the run cannot be resumed.
    """

    def __init__(
        self,
        resolved: Resolved,
        folder: Path,
        *,
        name: str,
        keys: Keys | None = None,
        idle_seconds: float = 3600.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        settings = live_settings(resolved)
        scorer = build_function(resolved, "live.scorer", settings.scorer, SCORERS, kind="scorer")
        self.assembly = assemble(convert_live_recipe(resolved), say=say).check()
        self.engine = self.assembly.build_engine(heard=say)
        redact = find_redactor(settings.redact) if settings.redact is not None else None
        redacting = Redacting(self.assembly.chat, redact) if redact is not None else None
        self.live = OnlineLearner(
            self.assembly, self.engine, scorer, folder, settings=settings, redacting=redacting, say=say
        )
        self.episodes = Episodes(idle_seconds=idle_seconds, watcher=self.live, reward_range=settings.reward_range)
        room = self.assembly.policy.context_length
        completions = CompletionService(self.engine, self.assembly.chat, context_length=room, seed=resolved.recipe.seed)
        self.server = Server(completions, self.episodes, name=name, keys=keys)
        self.people = PeopleQueue(folder / "live" / "people.jsonl", redact=redact)
        self.live.forgotten = self.people.forget
        routes = (*live_routes(self.server, self.live), *people_routes(self.server, self.people))
        self.app = build_serving_app(self.server, extra_routes=routes, families=self.live.families)
        self.learning: asyncio.Future[None] | None = None
        """Task that trains; it ends by itself only with an error."""

    async def __aenter__(self) -> LiveService:
        """Restore the state of the run and start training."""
        try:
            await self.live.begin()
        except BaseException:
            await self.engine.close()
            raise
        self.learning = asyncio.ensure_future(self.live.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop training and save the weights."""
        assert self.learning is not None
        self.learning.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self.learning
            await self.live.close()
        finally:
            await self.engine.close()
