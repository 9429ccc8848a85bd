"""HTTP routes to administer online learning: state, pause, approval and unlearning.

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

from collections.abc import Sequence
from typing import Any

from whetstone.chat.api.requests import RefusedError
from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.serving.app import Server
from whetstone.serving.online.online_learner import OnlineLearner


def live_routes(server: Server, live: OnlineLearner) -> Sequence[Any]:
    """Return the routes for `build_serving_app`; keys need the role `admin`.

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
        """Check the role of the key; return the id in the path, if any."""
        if not server.authenticate_request(request).has_role("admin"):
            raise RefusedError("this key may not administer", status=403, code="forbidden")
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
        return JSONResponse({"object": "list", "data": live.episodes()})

    async def episode(request: Request) -> JSONResponse:
        return JSONResponse(live.episode_to_json(check_admin(request)))

    async def decide(request: Request) -> JSONResponse:
        id = check_admin(request)
        live.decide(id, approved=request.url.path.endswith("/approve"))
        return JSONResponse(live.episode_to_json(id))

    async def delete(request: Request) -> JSONResponse:
        id = check_admin(request)
        if id not in live.turns.episodes:
            raise RefusedError(f'no stored turns of an episode "{id[:80]}"', status=404, code="not_found")
        live.forget(id)
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
    """End an open episode without passing its trajectory on."""
    for episode in server.episodes:
        if episode.record_id == id:
            episode.answers.clear()
            server.episodes.end(episode)
