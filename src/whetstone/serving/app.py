"""A model behind the APIs that agents speak, with every call on record.

    POST   /v1/chat/completions · /v1/responses · /v1/completions      OpenAI's APIs, streamed or whole
    POST   /v1/messages · /v1/messages/count_tokens                    Anthropic's
    GET    /v1/models · /health · /openapi.json
    GET, DELETE /v1/responses/{id}               one of the last, kept in memory
    GET    /v1/episodes · /v1/episodes/{id}      what is under way
    POST   /v1/episodes                          {"id": …, "task": …}: one begins, before anything is said in it
    POST   /v1/episodes/{id}/reward · /episodes/{id}/v1/reward    {"reward": 1.0}: it is over and worth that
    DELETE /v1/episodes/{id}                     forget it

An episode is named by the header `x-whetstone-episode` or by the path `/episodes/{id}/v1/…`, which a client that only
knows `base_url` can have; where neither is there, by what was said before. `x-whetstone-task` says which task it is of,
`x-whetstone-seed` that it is drawn as the native loop draws the episode of this seed.

Easy to get wrong: who hangs up in the middle of an answer must not leave it being drawn; and whatever goes wrong is
told in the shape the client's library reads.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from whetstone.chat.api.anthropic_messages import counted_of
from whetstone.chat.api.asked import Answer, Asked, RefusedError
from whetstone.chat.api.fields import flag, read_body
from whetstone.chat.api.openai_responses import RESPONSES
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.routes import ROUTES, model_listed, models_listed, wire_of
from whetstone.chat.api.stored_responses import StoredResponses
from whetstone.errors import EngineError, InfrastructureError, RecipeError, explained, innermost
from whetstone.extras import install_command
from whetstone.network.loopback import LOOPBACK, named
from whetstone.serving.access import Key, Keys
from whetstone.serving.connections import RequestIds
from whetstone.serving.episodes import Episodes, checked_name, seed_of
from whetstone.serving.openapi import document
from whetstone.serving.recording import Episode
from whetstone.serving.speaking import Speaker
from whetstone.serving.streaming import EventStream, unless_gone

EPISODE, TASK, SEED = "x-whetstone-episode", "x-whetstone-task", "x-whetstone-seed"
"""Headers."""


class Server:
    """What all routes have in common.

    Args:
        name: Of the model, as clients call it; every other is refused.
        most_bytes: Of a request.
        body_seconds: How long one may take to come.
    """

    def __init__(
        self,
        speaker: Speaker,
        episodes: Episodes,
        *,
        name: str,
        keys: Keys | None = None,
        most_bytes: int = 16 << 20,
        body_seconds: float = 60.0,
    ) -> None:
        self.speaker, self.episodes, self.name = speaker, episodes, name
        self.keys, self.most_bytes, self.body_seconds = keys if keys is not None else Keys(), most_bytes, body_seconds
        self.responses = StoredResponses()
        self.hold: Callable[[Episode, int, Answer], Awaitable[Answer]] | None = None
        """Where people look at answers before they go out: (episode, number of the answer, answer) → what goes out."""

    def key_of(self, request: Any) -> Key:
        """Whose request it is.

        Raises:
            RefusedError: Nobody's who may ask.
        """
        headers = {name.lower(): value for name, value in request.headers.items()}
        host = headers.get("host", "")
        own = headers.get("origin") in (None, f"http://{host}")  # any other page in a browser could ask as its user
        own = own and len(request.headers.getlist("host")) == 1
        if not len(self.keys) and not (named(host) in LOOPBACK and own):
            raise RefusedError("without keys this server answers to its own machine alone", status=403)
        key = self.keys.of(headers)
        key.ask()
        return key

    async def body_of(self, request: Any, key: Key) -> Mapping[str, Any]:
        """The object a request holds.

        Raises:
            RefusedError: It holds none, or too much, or is too long in coming.
        """
        most = min(self.most_bytes, key.most_bytes or self.most_bytes)
        pieces, size = [], 0
        try:
            async with asyncio.timeout(self.body_seconds):
                async for piece in request.stream():
                    size += len(piece)
                    if size > most:
                        raise RefusedError(f"a request may have {most} bytes", status=413, code="request_too_large")
                    pieces.append(piece)
        except TimeoutError:
            raise RefusedError(f"not all of it was there after {self.body_seconds:g} s", status=408) from None
        return read_body(b"".join(pieces))

    def episode_of(self, request: Any, key: Key, asked: Asked) -> Episode:
        """The episode a request belongs to."""
        name = request.path_params.get("episode") or request.headers.get(EPISODE, "")
        task = request.headers.get(TASK, "")
        checked_name(EPISODE, name, of_episode=True)
        seed = seed_of(request.headers.get(SEED), SEED)
        return self.episodes.of(key, asked, named=name, task=checked_name(TASK, task), seed=seed)

    def model_of(self, body: Mapping[str, Any]) -> str:
        """The model that is asked.

        Raises:
            RefusedError: It is not this one.
        """
        asked = body.get("model")
        if asked != self.name:
            raise RefusedError(
                f"The model `{str(asked)[:80]}` does not exist; there is `{self.name}`.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return self.name

    async def answered(
        self,
        key: Key,
        asked: Asked,
        episode: Episode,
        show: tuple[Callable[[str], None] | None, ...] = (),
        begun: Callable[[int], None] | None = None,
    ) -> list[Answer]:
        """The answers, counted and on record."""
        # who hangs up before the end could have had all of it
        room = self.speaker.context_length
        drawn = asked.count * min(asked.max_tokens or room, room)
        plain = asked.count == 1 and asked.prompt is None and asked.schema is None
        hold = self.hold if plain and episode.hold_seconds > 0 else None
        key.begin()
        try:
            try:
                answers = await self.speaker.answers(asked, episode, show if hold is None else (), begun)
                number = len(episode.said) - 1
            except Exception as error:
                # not `except*`: Python 3.11.0 to 3.11.3 wraps an exception raised in it into an ExceptionGroup
                if not isinstance(cause := innermost(error), RefusedError | InfrastructureError | EngineError):
                    raise
                drawn = 0
                raise self._refusal(cause) from None
            drawn = sum(len(answer.ids) for answer in answers)
            await self.episodes.heard(episode)
            if hold is not None:
                answers = [await hold(episode, number, answers[0])]
                for one in show:
                    if one is not None:
                        one(answers[0].message.text)
            return answers
        finally:
            key.end(drawn)

    def _refusal(self, error: Exception) -> RefusedError:
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, InfrastructureError):
            return RefusedError(explained(error), status=503, code="engine_down")
        return RefusedError(explained(error))  # it does not draw like that


def application(server: Server, *, also: Sequence[Any] = ()) -> Any:
    """The server, for any ASGI runner.

    Args:
        also: More routes of Starlette.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    async def health(request: Request) -> JSONResponse:
        if not len(server.keys):
            server.key_of(request)
        return JSONResponse({"status": "ok", "model": server.name, "version": server.speaker.engine.version})

    async def models(request: Request) -> JSONResponse:
        server.key_of(request)
        if "model" in request.path_params:
            return JSONResponse(model_listed(server.model_of({"model": request.path_params["model"]})))
        return JSONResponse(models_listed(server.name))

    async def answer(wire: Wire, request: Request) -> Any:
        key = server.key_of(request)
        body = await server.body_of(request, key)
        model = server.model_of(body)
        if wire is RESPONSES:
            body = server.responses.resolved(key.name, body)
        asked, is_streamed = wire.asked(body), flag(body, "stream")
        episode = server.episode_of(request, key, asked)
        id = f"{wire.id}{uuid.uuid4().hex}"
        headers = {EPISODE: episode.id}
        tokenizer = server.speaker.chat.tokenizer

        def told_of(answers: list[Answer]) -> dict[str, Any]:
            told = wire.whole(id, model, answers, body, tokenizer)
            if wire is RESPONSES:
                server.responses.keep(key.name, body, told)
            return told

        if is_streamed:
            stream = wire.stream(id, model, body, tokenizer)
            drawing = partial(server.answered, key, asked, episode)
            return await EventStream(asked.count, drawing, stream, told_of, headers).begin(request.receive)
        answers = await unless_gone(request, server.answered(key, asked, episode))
        return JSONResponse(told_of(answers), headers=headers)

    async def counted(request: Request) -> JSONResponse:
        body = await server.body_of(request, server.key_of(request))
        server.model_of(body)
        return JSONResponse({"input_tokens": server.speaker.count(counted_of(body))})

    async def response(request: Request) -> JSONResponse:
        key, id = server.key_of(request), request.path_params["id"]
        if request.method == "DELETE":
            server.responses.delete(key.name, id)
            return JSONResponse({"id": id, "object": "response", "deleted": True})
        return JSONResponse(server.responses.told(key.name, id))

    async def under_way(request: Request) -> JSONResponse:
        key = server.key_of(request)
        if "id" in request.path_params:
            return JSONResponse(_told(server.episodes.get(key, request.path_params["id"])))
        own = [_told(each) for each in server.episodes if each.owner == key.name or key.may("admin")]
        return JSONResponse({"object": "list", "data": own})

    async def opened(request: Request) -> JSONResponse:
        key = server.key_of(request)
        return JSONResponse(_told(server.episodes.opened(key, await server.body_of(request, key))))

    async def reward(request: Request) -> JSONResponse:
        key = server.key_of(request)
        body = await server.body_of(request, key)
        return JSONResponse(_told(server.episodes.reward(key, request.path_params["id"], body)))

    async def delete(request: Request) -> JSONResponse:
        server.episodes.delete(server.key_of(request), request.path_params["id"])
        return JSONResponse({"id": request.path_params["id"], "deleted": True})

    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            error = RefusedError(str(error.detail), status=error.status_code)
        elif not isinstance(error, RefusedError):
            error = RefusedError(f"{type(error).__name__}: the server failed", status=500)
        wire = wire_of(request.url.path, request.headers)
        again = {} if error.after is None else {"retry-after": str(math.ceil(error.after))}
        return JSONResponse(wire.error(error), status_code=error.status, headers=again)

    @asynccontextmanager
    async def lifetime(app: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            server.episodes.close()

    async def published(request: Request) -> JSONResponse:
        server.key_of(request)
        return JSONResponse(document(server.name))

    routes = [Route("/health", health), Route("/openapi.json", published)]
    for prefix in ("", "/episodes/{episode}"):
        for path, wire in ROUTES.items():
            routes.append(Route(f"{prefix}/v1/{path}", partial(answer, wire), methods=["POST"]))
        routes += [
            Route(f"{prefix}/v1/messages/count_tokens", counted, methods=["POST"]),
            Route(f"{prefix}/v1/responses/{{id}}", response, methods=["GET", "DELETE"]),
            Route(f"{prefix}/v1/models", models),
            Route(f"{prefix}/v1/models/{{model:path}}", models),
        ]
    routes += [
        Route("/v1/episodes", under_way),
        Route("/v1/episodes", opened, methods=["POST"]),
        Route("/v1/episodes/{id}", under_way),
        Route("/v1/episodes/{id}/reward", reward, methods=["POST"]),
        Route("/episodes/{id}/v1/reward", reward, methods=["POST"]),
        Route("/v1/episodes/{id}", delete, methods=["DELETE"]),
    ]
    routes += also
    kinds = (RefusedError, HTTPException, Exception)
    handlers = dict.fromkeys(kinds, refused)
    return Starlette(routes=routes, lifespan=lifetime, exception_handlers=handlers, middleware=[Middleware(RequestIds)])


def _told(episode: Episode) -> dict[str, Any]:
    """An episode as it is told of."""
    told = {"id": episode.id, "object": "episode", "task": episode.task, "turns": len(episode.said)}
    tokens = sum(len(said.action) for said in episode.said)
    return {**told, "tokens": tokens, "reward": episode.reward, "closed": episode.closed}
