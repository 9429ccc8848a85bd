"""A model behind the APIs that agents speak, with every call on record.

    POST   /v1/chat/completions · /v1/responses · /v1/completions      OpenAI's APIs, streamed or whole
    POST   /v1/messages · /v1/messages/count_tokens                    Anthropic's
    GET    /v1/models · /health · /ready · /metrics · /openapi.json
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
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

from whetstone.chat.api.anthropic_messages import counted_of
from whetstone.chat.api.asked import Answer, Asked, RefusedError
from whetstone.chat.api.fields import flag, read_body, receive_body, run_by_size
from whetstone.chat.api.openai_responses import RESPONSES
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.routes import ROUTES, model_listed, models_listed, rejection
from whetstone.chat.api.stored_responses import StoredResponses
from whetstone.errors import EngineError, InfrastructureError, RecipeError, explained, innermost
from whetstone.extras import install_command
from whetstone.inference import GenerateRequest, Sampling
from whetstone.network.http_layer import KEY_NAME, Family, Service, http_application, make_family
from whetstone.network.loopback import find_other_site
from whetstone.serving.access import Key, Keys
from whetstone.serving.episodes import Episodes, checked_name, seed_of
from whetstone.serving.openapi import ERROR, SECURITY, operations_of
from whetstone.serving.recording import Episode
from whetstone.serving.speaking import Speaker
from whetstone.serving.streaming import EventStream, unless_gone
from whetstone.tokens import TokenSequence

EPISODE, TASK, SEED = "x-whetstone-episode", "x-whetstone-task", "x-whetstone-seed"
"""Headers."""

_T = TypeVar("_T")
_LEAST_BYTES = 1 << 20
"""Size of a request that is read however short the context is: schemas and biases are no text."""
_BYTES_PER_CHARACTER = 12
"""Maximum in JSON: a character outside of the basic plane is written as two escapes."""
_PROBE_NAME, _PROBE_SECONDS, _READY_SECONDS = "readiness", 1.0, 10.0
_ENGINE_METRICS = {
    "requests": "Finished generations and scorings.",
    "failed": "Requests that ended in an error.",
    "prefill_tokens": "Computed prompt tokens.",
    "cached_tokens": "Prompt tokens from the KV cache.",
    "decode_tokens": "Sampled tokens.",
    "busy_seconds": "Time in forward passes.",
    "queue_seconds": "Time of all requests before their first forward pass.",
}


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
        self._probe: asyncio.Future[str] | None = None
        self._probed = 0.0

    def key_of(self, request: Any) -> Key:
        """Whose request it is.

        Raises:
            RefusedError: Nobody's who may ask.
        """
        if not len(self.keys) and (reason := find_other_site(request.scope["headers"])):
            raise RefusedError(f"without keys this server answers only its own machine: {reason}", status=403)
        key = self.keys.of(request.headers)
        request.scope[KEY_NAME] = key.name
        key.ask()
        return key

    async def read(
        self,
        request: Any,
        key: Key,
        parse: Callable[[Mapping[str, Any]], _T],
        *,
        is_prompt: bool = False,
        most: int | None = None,
    ) -> _T:
        """Read the object of a request and parse it; in a thread if it is long.

        Args:
            request: Of Starlette.
            key: Its key.
            parse: Returns the result; raises `RefusedError`.
            is_prompt: Whether the model reads it, so that the context length limits its size.
            most: Maximum bytes, if less than that of the server.

        Raises:
            RefusedError: It holds none, or too much, or is too long in coming.
        """
        most = min(self.most_bytes, key.most_bytes or self.most_bytes, most or self.most_bytes)
        if is_prompt:
            most = min(most, max(_LEAST_BYTES, _BYTES_PER_CHARACTER * self.most_characters))
        length = request.headers.get("content-length", "")
        pieces = request.stream()
        written = await receive_body(pieces, length=length, max_bytes=most, seconds=self.body_seconds)
        return await run_by_size(len(written), lambda: parse(read_body(written)))

    async def body_of(self, request: Any, key: Key, *, most: int | None = None) -> Mapping[str, Any]:
        """The object a request holds.

        Args:
            request: Of Starlette.
            key: Its key.
            most: See `read`.

        Raises:
            RefusedError: It holds none, or too much, or is too long in coming.
        """
        return await self.read(request, key, dict, most=most)

    @cached_property
    def longest_token(self) -> int:
        """Number of characters of the longest token."""
        return max(map(len, self.speaker.chat.tokenizer.get_vocab()))

    @property
    def most_characters(self) -> int:
        """Maximum length of a text that can fit the context."""
        return self.speaker.context_length * self.longest_token

    def checked_length(self, asked: Asked) -> Asked:
        """Return the request if its text can fit the context, whatever its tokens are.

        Raises:
            RefusedError: It cannot; it is not tokenized.
        """
        room = self.speaker.context_length
        is_ids = isinstance(asked.prompt, tuple)
        if asked.characters > (room if is_ids else self.most_characters):
            unit = "tokens" if is_ids else f"characters, and no token has more than {self.longest_token}"
            raise RefusedError(
                f"This model's maximum context length is {room} tokens; the messages have {asked.characters} {unit}.",
                param="messages" if asked.prompt is None else "prompt",
                code="context_length_exceeded",
            )
        return asked

    async def find_obstacle(self) -> str:
        """Return why the engine cannot sample now; empty if it can.

        One token is sampled. Requests of the same second share the result.
        """
        now = time.monotonic()
        if self._probe is None or (self._probe.done() and now - self._probed > _PROBE_SECONDS):
            self._probe, self._probed = asyncio.ensure_future(self._sample_token()), now
        try:
            async with asyncio.timeout(_READY_SECONDS):
                return await asyncio.shield(self._probe)
        except TimeoutError:
            return f"the engine sampled no token in {_READY_SECONDS:g} s"

    async def _sample_token(self) -> str:
        engine, chat = self.speaker.engine, self.speaker.chat
        try:
            await engine.generate(GenerateRequest(TokenSequence(chat.encode("a")[:1]), Sampling(1), _PROBE_NAME))
        except (InfrastructureError, EngineError) as error:
            return explained(error)
        finally:
            engine.forget(_PROBE_NAME)
        return ""

    def families(self) -> Iterator[Family]:
        """Return metrics of the engine and of episodes."""
        engine = self.speaker.engine
        for name, description in _ENGINE_METRICS.items():
            value = getattr(engine.statistics, name)
            yield make_family(f"engine_{name}_total", "counter", description, value)
        yield make_family("policy_version", "gauge", "Version of the weights.", engine.version)
        yield make_family("episodes_open", "gauge", "Open episodes.", len(self.episodes))
        running = sum(key.under_way for key in self.keys)
        yield make_family("answers_in_flight", "gauge", "Answers that are sampled.", running)

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


def application(server: Server, *, also: Sequence[Any] = (), families: Callable[[], Iterable[Family]] = list) -> Any:
    """The server, for any ASGI runner.

    Args:
        also: More routes of Starlette.
        families: More metrics.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    async def models(request: Request) -> JSONResponse:
        server.key_of(request)
        if "model" in request.path_params:
            return JSONResponse(model_listed(server.model_of({"model": request.path_params["model"]})))
        return JSONResponse(models_listed(server.name))

    async def answer(wire: Wire, request: Request) -> Any:
        key = server.key_of(request)

        def read(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], Asked]:
            server.model_of(body)
            if wire is RESPONSES:
                body = server.responses.resolved(key.name, body)
            return body, server.checked_length(wire.asked(body))

        body, asked = await server.read(request, key, read, is_prompt=True)
        model, is_streamed = server.name, flag(body, "stream")
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
        def count(body: Mapping[str, Any]) -> int:
            server.model_of(body)
            return server.speaker.count(server.checked_length(counted_of(body)))

        return JSONResponse({"input_tokens": await server.read(request, server.key_of(request), count, is_prompt=True)})

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

    def refuse(request: Request, error: Exception) -> JSONResponse:
        status, body, headers = rejection(request.method, request.url.path, request.headers, error)
        return JSONResponse(body, status, headers)

    def check_health(request: Request) -> None:
        if not len(server.keys):
            server.key_of(request)

    @asynccontextmanager
    async def lifetime(app: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            server.episodes.close()

    def service_families() -> Iterator[Family]:
        yield from server.families()
        yield from families()

    routes = []
    for prefix in ("", "/episodes/{episode}"):
        listed = not prefix
        for path, wire in ROUTES.items():
            endpoint = partial(answer, wire)
            routes.append(Route(f"{prefix}/v1/{path}", endpoint, methods=["POST"], include_in_schema=listed))
        routes += [
            Route(f"{prefix}/v1/messages/count_tokens", counted, methods=["POST"], include_in_schema=listed),
            Route(f"{prefix}/v1/responses/{{id}}", response, methods=["GET", "DELETE"], include_in_schema=listed),
            Route(f"{prefix}/v1/models", models, include_in_schema=listed),
            Route(f"{prefix}/v1/models/{{model:path}}", models, include_in_schema=listed),
        ]
    routes += [
        Route("/v1/episodes", under_way),
        Route("/v1/episodes", opened, methods=["POST"]),
        Route("/v1/episodes/{id}", under_way),
        Route("/v1/episodes/{id}/reward", reward, methods=["POST"]),
        Route("/episodes/{id}/v1/reward", reward, methods=["POST"], include_in_schema=False),
        Route("/v1/episodes/{id}", delete, methods=["DELETE"]),
    ]
    service = Service(
        f"Whetstone: {server.name}",
        refuse=refuse,
        check=server.key_of,
        find_obstacle=server.find_obstacle,
        check_health=check_health,
        health=lambda: {"model": server.name, "policy_version": server.speaker.engine.version},
        families=service_families,
        operations=operations_of(server.name),
        error=ERROR,
        security=SECURITY,
    )
    return http_application([*routes, *also], service, errors=[RefusedError], lifespan=lifetime)


def _told(episode: Episode) -> dict[str, Any]:
    """An episode as it is told of."""
    told = {"id": episode.id, "object": "episode", "task": episode.task, "turns": len(episode.said)}
    tokens = sum(len(said.action) for said in episode.said)
    return {**told, "tokens": tokens, "reward": episode.reward, "closed": episode.closed}
