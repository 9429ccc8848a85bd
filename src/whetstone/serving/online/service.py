"""Service of `whetstone live`: serves a policy and trains it online, with HTTP routes to administer training.

    GET    /v1/live                              state, and the turns of the next update
    POST   /v1/live/pause · /v1/live/resume
    GET    /v1/live/episodes · /v1/live/episodes/{id}
    POST   /v1/live/episodes/{id}/approve · /reject
    DELETE /v1/live/episodes/{id}                an episode that was not trained on
    POST   /v1/live/episodes/{id}/unlearn        any episode

Note:
    A deleted episode may still be open. It is ended, since its later messages would otherwise be stored again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from whetstone.assembly import assemble
from whetstone.assembly.build_policy import describe_low_rates
from whetstone.assembly.instantiate import build_function
from whetstone.chat.api.requests import RefusedError
from whetstone.data.redacting import Redacting
from whetstone.data.sensitive import find_redactor
from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.recipe import Resolved
from whetstone.serving.api_keys import Keys
from whetstone.serving.app import Server, build_serving_app
from whetstone.serving.episodes import EpisodeRegistry
from whetstone.serving.generate import CompletionService
from whetstone.serving.human_in_the_loop import PeopleQueue, people_routes
from whetstone.serving.online.online_learner import OnlineLearner
from whetstone.serving.online.scorers import SCORERS
from whetstone.serving.online.weights import STAGE, convert_live_recipe, live_settings


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
        recipe = self.assembly.resolved.recipe
        if recipe.policy.path is not None and recipe.reinforcement is not None:
            for line in describe_low_rates(self.assembly.policy, {STAGE: recipe.reinforcement.learning_rate}):
                say(line)
        self.engine = self.assembly.build_engine(heard=say)
        redact = find_redactor(settings.redact) if settings.redact is not None else None
        redacting = Redacting(self.assembly.chat, redact) if redact is not None else None
        self.live = OnlineLearner(
            self.assembly, self.engine, scorer, folder, settings=settings, redacting=redacting, say=say
        )
        self.episodes = EpisodeRegistry(
            idle_seconds=idle_seconds, watcher=self.live, reward_range=settings.reward_range
        )
        room = self.assembly.policy.context_length
        completions = CompletionService(self.engine, self.assembly.chat, context_length=room, seed=resolved.recipe.seed)
        self.server = Server(completions, self.episodes, name=name, keys=keys)
        self.people = PeopleQueue(folder / "live" / "people.jsonl", redact=redact)
        self.live.forgotten = self.people.forget_episode
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


def live_routes(server: Server, live: OnlineLearner) -> Sequence[Any]:
    """Build the routes that administer online learning, to pass to `build_serving_app`; keys need the role `admin`.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    def check_admin(request: Request) -> str:
        """Check that the key of a request has the role `admin`; return the episode id in the path, or an empty text."""
        if not server.authenticate_request(request).has_role("admin"):
            raise RefusedError(
                "this key may not administer online learning; the role admin is required", status=403, code="forbidden"
            )
        return str(request.path_params.get("id", ""))

    async def state(request: Request) -> JSONResponse:
        check_admin(request)
        return JSONResponse({"object": "live", **live.to_json()})

    async def pause(request: Request) -> JSONResponse:
        check_admin(request)
        live.set_paused(request.url.path.endswith("/pause"))
        return JSONResponse({"object": "live", "paused": live.journal.paused})

    async def list_episodes(request: Request) -> JSONResponse:
        check_admin(request)
        return JSONResponse({"object": "list", "data": live.list_episodes()})

    async def episode(request: Request) -> JSONResponse:
        return JSONResponse(live.episode_to_json(check_admin(request)))

    async def decide(request: Request) -> JSONResponse:
        id = check_admin(request)
        live.review_episode(id, approved=request.url.path.endswith("/approve"))
        return JSONResponse(live.episode_to_json(id))

    async def delete(request: Request) -> JSONResponse:
        id = check_admin(request)
        if id not in live.turns.episodes:
            raise RefusedError(f'no stored turns of an episode "{id[:80]}"', status=404, code="not_found")
        live.forget_episode(id)
        _end(server, id)
        return JSONResponse({"id": id, "deleted": True})

    async def unlearn(request: Request) -> JSONResponse:
        id = check_admin(request)
        num_updates = await live.unlearn_episode(id)
        _end(server, id)
        return JSONResponse({"id": id, "deleted": True, "unlearned": True, "updates_to_make": num_updates})

    path = "/v1/live/episodes/{id}"
    return [
        Route("/v1/live", state),
        Route("/v1/live/pause", pause, methods=["POST"]),
        Route("/v1/live/resume", pause, methods=["POST"]),
        Route("/v1/live/episodes", list_episodes),
        Route(path, episode),
        Route(path, delete, methods=["DELETE"]),
        Route(f"{path}/approve", decide, methods=["POST"]),
        Route(f"{path}/reject", decide, methods=["POST"]),
        Route(f"{path}/unlearn", unlearn, methods=["POST"]),
    ]


def _end(server: Server, id: str) -> None:
    """End an open episode and discard its answers, so that its trajectory is not recorded."""
    for episode in server.episodes:
        if episode.record_id == id:
            episode.answers.clear()
            server.episodes.end(episode)
