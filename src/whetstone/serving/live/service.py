"""What belongs to a served policy that learns? Its parts, made from a recipe; inside `async with` it learns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from whetstone.assembly import assemble
from whetstone.assembly.instantiate import function_of
from whetstone.data.redacting import Redacting
from whetstone.data.sensitive import find_redactor
from whetstone.recipe import Resolved
from whetstone.serving.access import Keys
from whetstone.serving.app import Server, application
from whetstone.serving.episodes import Episodes
from whetstone.serving.live.learning import Live
from whetstone.serving.live.routes import live_routes
from whetstone.serving.live.scorers import SCORERS
from whetstone.serving.live.weights import as_reinforcement, settings_of
from whetstone.serving.people import PeopleQueue, people_routes
from whetstone.serving.speaking import Speaker


class LiveService:
    """An application that serves and learns.

    Args:
        resolved: The recipe; its `live` says how it learns.
        folder: Where it is kept, and gone on with.
        name: What clients call the model.
        say: Told in a line of what matters.

    Raises:
        WhetstoneError: As `assemble`; or what is in the folder cannot be gone on with.
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
        settings = settings_of(resolved)
        scorer = function_of(resolved, "live.scorer", settings.scorer, SCORERS, kind="scorer")
        self.assembly = assemble(as_reinforcement(resolved), say=say).check()
        self.engine = self.assembly.engine(heard=say)
        redact = find_redactor(settings.redact) if settings.redact is not None else None
        redacting = Redacting(self.assembly.chat, redact) if redact is not None else None
        self.live = Live(self.assembly, self.engine, scorer, folder, settings=settings, redacting=redacting, say=say)
        self.episodes = Episodes(idle_seconds=idle_seconds, watcher=self.live, reward_range=settings.reward_range)
        room = self.assembly.policy.context_length
        speaker = Speaker(self.engine, self.assembly.chat, context_length=room, seed=resolved.recipe.seed)
        self.server = Server(speaker, self.episodes, name=name, keys=keys)
        self.people = PeopleQueue(folder / "live" / "people.jsonl", redact=redact)
        self.live.forgotten = self.people.forget
        routes = (*live_routes(self.server, self.live), *people_routes(self.server, self.people))
        self.app = application(self.server, also=routes, families=self.live.families)
        self.learning: asyncio.Future[None] | None = None
        """Runs as long as it learns; it ends by itself with an error alone."""

    async def __aenter__(self) -> LiveService:
        """Come to where the run stood, and learn from there on."""
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
        """What was learned is saved."""
        assert self.learning is not None
        self.learning.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self.learning
            await self.live.close()
        finally:
            await self.engine.close()
