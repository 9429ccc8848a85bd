"""What may an administrator ask of a policy that learns? To show, to hold, to approve, to forget.

    GET    /v1/live                              how things stand, and what is learned from next
    POST   /v1/live/pause · /v1/live/resume
    GET    /v1/live/episodes · /v1/live/episodes/{id}
    POST   /v1/live/episodes/{id}/approve · /reject
    DELETE /v1/live/episodes/{id}                one that was not learned from
    POST   /v1/live/episodes/{id}/unlearn        any

Easy to get wrong: an episode that is forgotten may be under way; what is still said in it would bring it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whetstone.chat.api.asked import RefusedError
from whetstone.errors import RecipeError
from whetstone.extras import install_command
from whetstone.serving.app import Server
from whetstone.serving.live.learning import Live


def live_routes(server: Server, live: Live) -> Sequence[Any]:
    """The routes, for `application`; keys need the role `admin`.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    def may(request: Request) -> str:
        """The episode that is named, if any; whoever asks may."""
        if not server.key_of(request).may("admin"):
            raise RefusedError("this key may not administer", status=403, code="forbidden")
        return str(request.path_params.get("id", ""))

    async def told(request: Request) -> JSONResponse:
        may(request)
        return JSONResponse({"object": "live", **live.told()})

    async def pause(request: Request) -> JSONResponse:
        may(request)
        live.pause(request.url.path.endswith("/pause"))
        return JSONResponse({"object": "live", "paused": live.journal.paused})

    async def listed(request: Request) -> JSONResponse:
        may(request)
        return JSONResponse({"object": "list", "data": live.episodes()})

    async def told_of(request: Request) -> JSONResponse:
        return JSONResponse(live.told_of(may(request)))

    async def decide(request: Request) -> JSONResponse:
        id = may(request)
        live.decide(id, approved=request.url.path.endswith("/approve"))
        return JSONResponse(live.told_of(id))

    async def delete(request: Request) -> JSONResponse:
        id = may(request)
        if id not in live.turns.episodes:
            raise RefusedError(f'nothing is kept of an episode "{id[:80]}"', status=404, code="not_found")
        live.forget(id)
        _end(server, id)
        return JSONResponse({"id": id, "deleted": True})

    async def unlearn(request: Request) -> JSONResponse:
        id = may(request)
        again = await live.unlearn(id)
        _end(server, id)
        return JSONResponse({"id": id, "deleted": True, "unlearned": True, "updates_to_make": again})

    of = "/v1/live/episodes/{id}"
    return [
        Route("/v1/live", told),
        Route("/v1/live/pause", pause, methods=["POST"]),
        Route("/v1/live/resume", pause, methods=["POST"]),
        Route("/v1/live/episodes", listed),
        Route(of, told_of),
        Route(of, delete, methods=["DELETE"]),
        Route(f"{of}/approve", decide, methods=["POST"]),
        Route(f"{of}/reject", decide, methods=["POST"]),
        Route(f"{of}/unlearn", unlearn, methods=["POST"]),
    ]


def _end(server: Server, id: str) -> None:
    """Where an episode is under way, it is over, and nothing of it is handed on."""
    for episode in server.episodes:
        if episode.record_id == id:
            episode.said.clear()
            server.episodes.end(episode)
