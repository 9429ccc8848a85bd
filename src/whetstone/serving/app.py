"""ASGI application of the server: routes of the OpenAI and Anthropic APIs and of episodes.

    POST   /v1/chat/completions · /v1/responses · /v1/completions      OpenAI's APIs, streamed or not
    POST   /v1/messages · /v1/messages/count_tokens                    Anthropic's
    GET    /v1/models · /health · /ready · /metrics · /openapi.json
    GET, DELETE /v1/responses/{id}               a recent response, stored in memory
    GET    /v1/episodes · /v1/episodes/{id}      open episodes
    POST   /v1/episodes                          {"id": …, "task": …}: open an episode before its first request
    POST   /v1/episodes/{id}/reward · /episodes/{id}/v1/reward    {"reward": 1.0}: end an episode with a reward
    DELETE /v1/episodes/{id}                     delete it

An episode is named by the header `x-whetstone-episode`, or by the path `/episodes/{id}/v1/…` for clients that only know
`base_url`. Without a name it is identified by the conversation so far. `x-whetstone-task` names its task.
`x-whetstone-seed` samples it as the native loop samples the episode of this seed.

Note:
    If a client disconnects during an answer, sampling must stop. Errors have the shape that the client's library reads.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

from whetstone.chat.api.anthropic_messages import parse_count_request
from whetstone.chat.api.completion_routes import ROUTES, build_rejection, model_entry, model_list
from whetstone.chat.api.openai_responses import RESPONSES
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.request_fields import parse_bool, read_body, receive_body, run_by_size
from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError
from whetstone.chat.api.stored_responses import StoredResponses
from whetstone.errors import EngineError, InfrastructureError, RecipeError, root_exception, summarize_exception
from whetstone.inference import GenerateRequest, Sampling
from whetstone.network.host_header import find_other_site
from whetstone.network.http_layer import KEY_NAME, Family, Service, http_application, make_family
from whetstone.optional_dependencies import install_command
from whetstone.serving.api_keys import Key, Keys
from whetstone.serving.conversation_matching import ServerEpisode
from whetstone.serving.episodes import EpisodeRegistry, check_name, parse_episode_seed
from whetstone.serving.generate import CompletionService
from whetstone.serving.route_descriptions import ERROR, SECURITY, describe_operations
from whetstone.serving.streaming import EventStream, run_until_disconnect
from whetstone.tokens import TokenSequence

EPISODE, TASK, SEED = "x-whetstone-episode", "x-whetstone-task", "x-whetstone-seed"
"""Request headers."""

_T = TypeVar("_T")
_MIN_BYTES = 1 << 20
"""Minimum size limit of a request for a short context: schemas and biases are not part of the text."""
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
    """State that all routes of the server share: the completion service, the open episodes and the API keys.

    Args:
        name: Name of the model in requests; every other name is rejected.
        max_bytes: Maximum bytes of a request.
        body_seconds: Maximum time to receive a request.
    """

    def __init__(
        self,
        completions: CompletionService,
        episodes: EpisodeRegistry,
        *,
        name: str,
        keys: Keys | None = None,
        max_bytes: int = 16 << 20,
        body_seconds: float = 60.0,
    ) -> None:
        self.completions, self.episodes, self.name = completions, episodes, name
        self.keys, self.max_bytes, self.body_seconds = keys if keys is not None else Keys(), max_bytes, body_seconds
        self.responses = StoredResponses()
        self.hold: Callable[[ServerEpisode, int, CompletionResponse], Awaitable[CompletionResponse]] | None = None
        """Callback that lets people review an answer before it is sent: (episode, number of the answer, answer) →
        answer to send."""
        self._probe: asyncio.Future[str] | None = None
        self._probed = 0.0

    def authenticate_request(self, request: Any) -> Key:
        """Find the API key of a request, and count the request against the limit of the key.

        Raises:
            RefusedError: The request has no valid key, or the limit of its key is reached.
        """
        if not len(self.keys) and (reason := find_other_site(request.scope["headers"])):
            raise RefusedError(
                f"without keys this server accepts only requests from this machine: {reason}", status=403
            )
        key = self.keys.find(request.headers)
        request.scope[KEY_NAME] = key.name
        key.count_request()
        return key

    async def read(
        self,
        request: Any,
        key: Key,
        parse: Callable[[Mapping[str, Any]], _T],
        *,
        is_prompt: bool = False,
        max_bytes: int | None = None,
    ) -> _T:
        """Read the JSON object in the body of a request and parse it, in a thread if the body is long.

        Args:
            request: Request of Starlette.
            key: Key of the request.
            parse: Returns the result; raises `RefusedError`.
            is_prompt: Whether the model reads it, so that the context length limits its size.
            max_bytes: Maximum bytes, if less than that of the server.

        Raises:
            RefusedError: The body is missing, malformed, too large or too slow.
        """
        max_bytes = min(self.max_bytes, key.most_bytes or self.max_bytes, max_bytes or self.max_bytes)
        if is_prompt:
            max_bytes = min(max_bytes, max(_MIN_BYTES, _BYTES_PER_CHARACTER * self.max_characters))
        length = request.headers.get("content-length", "")
        pieces = request.stream()
        written = await receive_body(pieces, length=length, max_bytes=max_bytes, seconds=self.body_seconds)
        return await run_by_size(len(written), lambda: parse(read_body(written)))

    async def read_object(self, request: Any, key: Key, *, max_bytes: int | None = None) -> Mapping[str, Any]:
        """Return the JSON object in the body of a request.

        Args:
            request: Request of Starlette.
            key: Key of the request.
            max_bytes: See `read`.

        Raises:
            RefusedError: The body is missing, malformed, too large or too slow.
        """
        return await self.read(request, key, dict, max_bytes=max_bytes)

    @cached_property
    def longest_token(self) -> int:
        """Return the number of characters of the longest token of the vocabulary."""
        return max(map(len, self.completions.chat.tokenizer.get_vocab()))

    @property
    def max_characters(self) -> int:
        """Return the largest number of characters that the context can hold, if each token were the longest one."""
        return self.completions.context_length * self.longest_token

    def check_length(self, completion: CompletionRequest) -> CompletionRequest:
        """Return a request whose text can fit the context; a longer text is refused without tokenizing it.

        Raises:
            RefusedError: The text has more than `max_characters`.
        """
        context_length = self.completions.context_length
        is_ids = isinstance(completion.prompt, tuple)
        if completion.num_characters > (context_length if is_ids else self.max_characters):
            unit = "tokens" if is_ids else f"characters, and no token has more than {self.longest_token}"
            raise RefusedError(
                f"This model's maximum context length is {context_length} tokens; "
                f"the messages have {completion.num_characters} {unit}.",
                param="messages" if completion.prompt is None else "prompt",
                code="context_length_exceeded",
            )
        return completion

    async def find_obstacle(self) -> str:
        """Check readiness by sampling one token; requests within the same second share the result.

        Returns:
            Reason why the engine cannot sample; empty if it can.
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
        engine, chat = self.completions.engine, self.completions.chat
        try:
            await engine.generate(GenerateRequest(TokenSequence(chat.encode("a")[:1]), Sampling(1), _PROBE_NAME))
        except (InfrastructureError, EngineError) as error:
            return summarize_exception(error)
        finally:
            engine.forget(_PROBE_NAME)
        return ""

    def families(self) -> Iterator[Family]:
        """Yield the Prometheus metrics of the engine and of episodes, for `GET /metrics`."""
        engine = self.completions.engine
        for name, description in _ENGINE_METRICS.items():
            value = getattr(engine.statistics, name)
            yield make_family(f"engine_{name}_total", "counter", description, value)
        yield make_family("policy_version", "gauge", "Version of the weights.", engine.version)
        yield make_family("episodes_open", "gauge", "Open episodes.", len(self.episodes))
        running = sum(key.num_running for key in self.keys)
        yield make_family("answers_in_flight", "gauge", "Answers that are sampled.", running)

    def find_episode(self, request: Any, key: Key, completion: CompletionRequest) -> ServerEpisode:
        """Find or open the episode of a request, from its headers, its path, or the prefix of its conversation."""
        name = request.path_params.get("episode") or request.headers.get(EPISODE, "")
        task = request.headers.get(TASK, "")
        check_name(EPISODE, name, of_episode=True)
        seed = parse_episode_seed(request.headers.get(SEED), SEED)
        return self.episodes.find_or_open(key, completion, name=name, task=check_name(TASK, task), seed=seed)

    def check_model(self, body: Mapping[str, Any]) -> str:
        """Check that a request names the served model, and return the name.

        Raises:
            RefusedError: The request names another model (status 404).
        """
        name = body.get("model")
        if name != self.name:
            raise RefusedError(
                f"The model `{str(name)[:80]}` does not exist; this server has `{self.name}`: send it as `model`, or "
                f"start the server with --name.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return self.name

    async def answer_request(
        self,
        key: Key,
        completion: CompletionRequest,
        episode: ServerEpisode,
        show: tuple[Callable[[str], None] | None, ...] = (),
        on_prompt_tokens: Callable[[int], None] | None = None,
    ) -> list[CompletionResponse]:
        """Sample and record the answers to a request, counting them against the limits of the key.

        Args:
            key: Key of the request.
            completion: The parsed request.
            episode: Episode in which the answers are recorded.
            show: Callback for streamed text per answer; None: the answer is not streamed.
            on_prompt_tokens: Receives the number of prompt tokens before sampling.

        Raises:
            RefusedError: A limit is reached, or the request is invalid.
        """
        # a client that disconnects is charged the maximum length
        context_length = self.completions.context_length
        num_tokens = completion.count * min(completion.max_tokens or context_length, context_length)
        plain = completion.count == 1 and completion.prompt is None and completion.schema is None
        hold = self.hold if plain and episode.hold_seconds > 0 else None
        key.start_answer()
        try:
            try:
                answers = await self.completions.sample_answers(
                    completion, episode, show if hold is None else (), on_prompt_tokens
                )
                number = len(episode.answers) - 1
            except Exception as error:
                # not `except*`: Python 3.11.0 to 3.11.3 wraps an exception raised in it into an ExceptionGroup
                if not isinstance(cause := root_exception(error), RefusedError | InfrastructureError | EngineError):
                    raise
                num_tokens = 0
                raise self._refusal(cause) from None
            num_tokens = sum(len(answer.ids) for answer in answers)
            await self.episodes.register_answer(episode)
            if hold is not None:
                answers = [await hold(episode, number, answers[0])]
                for callback in show:
                    if callback is not None:
                        callback(answers[0].message.text)
            return answers
        finally:
            key.end_answer(num_tokens)

    def _refusal(self, error: Exception) -> RefusedError:
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, InfrastructureError):
            return RefusedError(summarize_exception(error), status=503, code="engine_down")
        return RefusedError(summarize_exception(error))  # the engine does not support the request


def build_serving_app(
    server: Server, *, extra_routes: Sequence[Any] = (), families: Callable[[], Iterable[Family]] = list
) -> Any:
    """Build the ASGI application of a server.

    Args:
        extra_routes: Additional routes of Starlette.
        families: Additional metrics.

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
        server.authenticate_request(request)
        if "model" in request.path_params:
            return JSONResponse(model_entry(server.check_model({"model": request.path_params["model"]})))
        return JSONResponse(model_list(server.name))

    async def answer(wire: Wire, request: Request) -> Any:
        key = server.authenticate_request(request)

        def read(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], CompletionRequest]:
            server.check_model(body)
            if wire is RESPONSES:
                body = server.responses.resolve_input(key.name, body)
            return body, server.check_length(wire.parse(body))

        body, completion = await server.read(request, key, read, is_prompt=True)
        model, is_streamed = server.name, parse_bool(body, "stream")
        episode = server.find_episode(request, key, completion)
        id = f"{wire.id}{uuid.uuid4().hex}"
        headers = {EPISODE: episode.id}
        tokenizer = server.completions.chat.tokenizer

        def to_content(answers: list[CompletionResponse]) -> dict[str, Any]:
            content = wire.render(id, model, answers, body, tokenizer)
            if wire is RESPONSES:
                server.responses.store(key.name, body, content)
            return content

        if is_streamed:
            stream = wire.stream(id, model, body, tokenizer)
            sampling = partial(server.answer_request, key, completion, episode)
            return await EventStream(completion.count, sampling, stream, to_content, headers).begin(request.receive)
        answers = await run_until_disconnect(request, server.answer_request(key, completion, episode))
        return JSONResponse(to_content(answers), headers=headers)

    async def count_tokens(request: Request) -> JSONResponse:
        def count(body: Mapping[str, Any]) -> int:
            server.check_model(body)
            return server.completions.count_tokens(server.check_length(parse_count_request(body)))

        return JSONResponse(
            {"input_tokens": await server.read(request, server.authenticate_request(request), count, is_prompt=True)}
        )

    async def response(request: Request) -> JSONResponse:
        key, id = server.authenticate_request(request), request.path_params["id"]
        if request.method == "DELETE":
            server.responses.delete(key.name, id)
            return JSONResponse({"id": id, "object": "response", "deleted": True})
        return JSONResponse(server.responses.get(key.name, id))

    async def list_episodes(request: Request) -> JSONResponse:
        key = server.authenticate_request(request)
        if "id" in request.path_params:
            return JSONResponse(_episode_to_json(server.episodes.get(key, request.path_params["id"])))
        own = [_episode_to_json(each) for each in server.episodes if each.owner == key.name or key.has_role("admin")]
        return JSONResponse({"object": "list", "data": own})

    async def open_episode(request: Request) -> JSONResponse:
        key = server.authenticate_request(request)
        return JSONResponse(_episode_to_json(server.episodes.open_episode(key, await server.read_object(request, key))))

    async def reward(request: Request) -> JSONResponse:
        key = server.authenticate_request(request)
        body = await server.read_object(request, key)
        return JSONResponse(_episode_to_json(server.episodes.set_reward(key, request.path_params["id"], body)))

    async def delete(request: Request) -> JSONResponse:
        server.episodes.delete(server.authenticate_request(request), request.path_params["id"])
        return JSONResponse({"id": request.path_params["id"], "deleted": True})

    def refuse(request: Request, error: Exception) -> JSONResponse:
        status, body, headers = build_rejection(request.method, request.url.path, request.headers, error)
        return JSONResponse(body, status, headers)

    def check_health(request: Request) -> None:
        if not len(server.keys):
            server.authenticate_request(request)

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
            Route(f"{prefix}/v1/messages/count_tokens", count_tokens, methods=["POST"], include_in_schema=listed),
            Route(f"{prefix}/v1/responses/{{id}}", response, methods=["GET", "DELETE"], include_in_schema=listed),
            Route(f"{prefix}/v1/models", models, include_in_schema=listed),
            Route(f"{prefix}/v1/models/{{model:path}}", models, include_in_schema=listed),
        ]
    routes += [
        Route("/v1/episodes", list_episodes),
        Route("/v1/episodes", open_episode, methods=["POST"]),
        Route("/v1/episodes/{id}", list_episodes),
        Route("/v1/episodes/{id}/reward", reward, methods=["POST"]),
        Route("/episodes/{id}/v1/reward", reward, methods=["POST"], include_in_schema=False),
        Route("/v1/episodes/{id}", delete, methods=["DELETE"]),
    ]
    service = Service(
        f"Whetstone: {server.name}",
        refuse=refuse,
        check=server.authenticate_request,
        find_obstacle=server.find_obstacle,
        check_health=check_health,
        health=lambda: {"model": server.name, "policy_version": server.completions.engine.version},
        families=service_families,
        operations=describe_operations(server.name),
        error=ERROR,
        security=SECURITY,
    )
    return http_application([*routes, *extra_routes], service, errors=[RefusedError], lifespan=lifetime)


def _episode_to_json(episode: ServerEpisode) -> dict[str, Any]:
    """Convert an episode into the JSON object of `GET /v1/episodes/{id}`."""
    summary = {"id": episode.id, "object": "episode", "task": episode.task, "turns": len(episode.answers)}
    tokens = sum(len(answer.action) for answer in episode.answers)
    return {**summary, "tokens": tokens, "reward": episode.reward, "closed": episode.closed}
