"""HTTP server of an event loop through which external agents call the policy during training."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import uuid
import weakref
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from whetstone.chat.api.completion_routes import ROUTES, build_rejection, model_list
from whetstone.chat.api.openai_completions import COMPLETIONS
from whetstone.chat.api.openai_responses import RESPONSES
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.request_fields import parse_bool, read_body, receive_body
from whetstone.chat.api.requests import CompletionRequest, RefusedError
from whetstone.chat.api.stored_responses import StoredResponses
from whetstone.network.http_layer import RouteError
from whetstone.network.idle_timeouts import bounded_http_protocol

if TYPE_CHECKING:
    from whetstone.environments.external_agent import ExternalAgent

_MAX_BODY_BYTES, _BODY_SECONDS = 16 << 20, 60.0
"""Maximum size of a request, and time until it is complete."""
_MAX_STARTING = 16
"""Maximum number of agents that start at the same time. Clients give up if a connection is not accepted within five
seconds, and hundreds that start at the same moment in one process wait for each other."""
MODEL = "policy"
"""Name of the policy in the requests of agents."""
_MAX_NAME_CHARACTERS = 100
"""Maximum characters of the name of an agent."""


_Servers = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, "Awaitable[AgentServer]"]


class AgentServer:
    """HTTP server on 127.0.0.1 for all external agents of an event loop.

    `AgentServer.for_loop` creates it at the first episode. Each `ExternalAgent` registers under its id in `agents`; its
    requests have the path `/episodes/{id}/v1`.
    """

    _servers: ClassVar[_Servers] = weakref.WeakKeyDictionary()

    def __init__(self, url: str, agents: dict[str, ExternalAgent], responses: StoredResponses) -> None:
        self.url, self.agents, self.responses = url, agents, responses
        self.serving: asyncio.Future[None] | None = None
        self._server: Any = None
        self.starting = asyncio.Semaphore(_MAX_STARTING)
        """Semaphore that an agent holds from its start to its first request."""

    async def serve_socket(self, listening: socket.socket) -> asyncio.Server:
        """Serve another listening socket too, until the returned server is closed.

        Sandboxed agents connect to such a socket.
        """
        server, config = self._server, self._server.config

        def protocol() -> asyncio.Protocol:
            connection: asyncio.Protocol = config.http_protocol_class(
                config=config, server_state=server.server_state, app_state=server.lifespan.state
            )
            return connection

        return await asyncio.get_running_loop().create_server(protocol, sock=listening)

    @classmethod
    async def for_loop(cls) -> AgentServer:
        """Return the server of the running event loop; start it at the first call."""
        loop = asyncio.get_running_loop()
        if loop not in cls._servers:
            cls._servers[loop] = asyncio.ensure_future(cls._open_server())
        return await cls._servers[loop]

    @classmethod
    async def _open_server(cls) -> AgentServer:
        """Start uvicorn on a free port and return the server when it accepts connections."""
        uvicorn = importlib.import_module("uvicorn")
        agents: dict[str, ExternalAgent] = {}
        responses = StoredResponses()
        config = uvicorn.Config(
            _application(agents, responses),
            log_level="critical",
            lifespan="off",
            timeout_keep_alive=60,
            http=bounded_http_protocol(),  # requests come from untrusted code
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # the run's own
        opened, begin = asyncio.Event(), server.startup

        async def startup(sockets: Any = None) -> None:
            await begin(sockets=sockets)
            opened.set()

        server.startup = startup
        bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
        door = cls(f"http://127.0.0.1:{bound.getsockname()[1]}", agents, responses)
        door._server = server
        door.serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        await opened.wait()
        return door


def _application(agents: Mapping[str, ExternalAgent], stored: StoredResponses) -> Any:
    """Return the ASGI application of the agents' API: completions, models and rewards."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def agent_of(request: Request) -> ExternalAgent:
        agent = agents.get(request.path_params["id"])
        if agent is None:
            raise RefusedError("the episode is over", status=409, code="episode_over")
        return agent

    async def body_of(request: Request) -> bytes:
        length = request.headers.get("content-length", "")
        pieces = request.stream()
        return await receive_body(pieces, length=length, max_bytes=_MAX_BODY_BYTES, seconds=_BODY_SECONDS)

    async def answer(wire: Wire, request: Request) -> Response:
        agent, owner, body = agent_of(request), request.path_params["id"], read_body(await body_of(request))
        if wire is COMPLETIONS:
            raise RefusedError("in training, an agent must use a chat API, such as /v1/chat/completions")
        if wire is RESPONSES:
            body = stored.resolve_input(owner, body)
        question, is_streamed = wire.parse(body), parse_bool(body, "stream")
        _refuse_unsupported(question)
        answers = [await agent.request_action(question, _agent_name(body))]
        id, model = f"{wire.id}{uuid.uuid4().hex}", str(body.get("model") or MODEL)
        response = wire.render(id, model, answers, body, None)
        if wire is RESPONSES:
            stored.store(owner, body, response)
        if not is_streamed:
            return JSONResponse(response)
        stream = wire.stream(id, model, body, None)
        return Response(
            "".join((*stream.write_start(1, 0), *stream.write_end(answers))), media_type="text/event-stream"
        )

    async def counted(request: Request) -> Response:
        raise RefusedError(
            "count_tokens: in training, tokens are not counted before an answer is sampled",
            status=404,
            code="not_found",
        )

    async def models(request: Request) -> JSONResponse:
        return JSONResponse(model_list(MODEL))

    async def reward(request: Request) -> JSONResponse:
        agent = agent_of(request)
        agent.record_reward(read_body(await body_of(request)))
        return JSONResponse({"id": request.path_params["id"], **agent.final})

    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            error = RouteError(error.status_code, str(error.detail), error.headers)
        status, body, headers = build_rejection(request.method, request.url.path, request.headers, error)
        return JSONResponse(body, status, headers)

    base = "/episodes/{id}/v1"
    routes = [Route(f"{base}/{path}", partial(answer, wire), methods=["POST"]) for path, wire in ROUTES.items()]
    routes += [
        Route(f"{base}/messages/count_tokens", counted, methods=["POST"]),
        Route(f"{base}/models", models),
        Route(f"{base}/reward", reward, methods=["POST"]),
    ]
    kinds = (RefusedError, HTTPException, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, refused))


def _agent_name(body: Mapping[str, Any]) -> str:
    """Return the agent name in a request's model: `planner` for `policy:planner`."""
    model, _, name = str(body.get("model") or "").partition(":")
    return name[:_MAX_NAME_CHARACTERS] if model == MODEL else ""


def _refuse_unsupported(question: CompletionRequest) -> None:
    """Refuse a request with options that training does not support.

    Raises:
        RefusedError: If the request has such an option: several answers, a schema, a required call, or log-probs.
    """
    if question.count > 1:
        raise RefusedError(
            "n: in training, one answer is sampled per request; the recipe sets the number of episodes", param="n"
        )
    if question.schema is not None:
        raise RefusedError(
            "response_format: in training, answers are sampled without a schema; describe the format in a message",
            param="response_format",
            code="unsupported_parameter",
        )
    if question.must_call is not None:
        raise RefusedError(
            "tool_choice: in training, calls are sampled without a constraint; use auto, and request the call "
            "in a message",
            param="tool_choice",
            code="unsupported_parameter",
        )
    if question.top_logprobs:
        raise RefusedError(
            "top_logprobs: in training, log-probs are not returned; remove the parameter", param="top_logprobs"
        )
