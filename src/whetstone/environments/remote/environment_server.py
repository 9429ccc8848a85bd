"""HTTP server of an environment of Whetstone, for any client and many concurrent episodes.

    GET    /health · /ready · /metrics · /openapi.json       see `network.http_layer`
    GET    /tasks/{index} · /held_out/{count}  tasks of the source, if there is one
    POST   /episodes                          {"protocol": 1} → {"id": …}
    POST   /episodes/{id}/reset               {"task": …, "seed": …} → the first observation
    POST   /episodes/{id}/step                {"turn": 0, "action": …} → the result
    POST   /episodes/{id}/verdict             → the verdict of the environment
    DELETE /episodes/{id}

Messages have the format of OpenAI's API.

Note:
    A client that does not receive the answer repeats its request, and the action must not be executed twice: an
    action has the number of its turn, and the answer of the last turn is stored. A client that crashes never
    deletes: idle episodes are closed. Ids are random, so no client can use another's episode. Tasks contain their
    answers, so access is checked before all routes (`auth.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message
from whetstone.chat.api.request_fields import read_body, receive_body, truncate_value, whole_number
from whetstone.chat.api.requests import RefusedError
from whetstone.environments.protocol import Environment, TakesSeat
from whetstone.environments.remote.auth import Guard
from whetstone.environments.remote.serialization import (
    PROTOCOL,
    observation_to_wire,
    parse_field,
    result_to_wire,
    seat_from_wire,
    task_from_wire,
    task_to_wire,
)
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError
from whetstone.network.http_layer import Family, RouteError, Service, http_application, make_family
from whetstone.network.openapi_document import Operation, object_schema
from whetstone.optional_dependencies import install_command
from whetstone.tools.protocol import GivesVerdict
from whetstone.tools.thread_runner import call_user_function
from whetstone.waiting import CLOSE_SECONDS, close_within

_MAX_HELD_OUT = 4096
"""Maximum number of held-out tasks per request."""
_MAX_BYTES, _BODY_SECONDS = 16 << 20, 60.0
"""Maximum size of a request, and time until it is complete."""
_UNUSED_SECONDS = 60.0
"""Seconds after which an episode that was opened but never reset is closed, at most."""

_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_TASK = object_schema(
    ("id",), id=_TEXT, prompt=_TEXT, private={"type": "object"}, tags={"type": "object", "additionalProperties": _TEXT}
)
_SEAT = object_schema(("role", "table", "seed"), role=_TEXT, table=_TEXT, seed={"type": "integer"})
_OPERATIONS = {
    "GET /tasks/{index}": Operation("A task of the source.", path={"index": _COUNT}),
    "GET /held_out/{count}": Operation("Held-out tasks.", path={"count": {**_COUNT, "maximum": _MAX_HELD_OUT}}),
    "POST /episodes": Operation(
        "Open an episode.",
        body=object_schema(("protocol",), protocol={"const": PROTOCOL}),
        status=201,
    ),
    "POST /episodes/{id}/reset": Operation(
        "Start a task.",
        path={"id": _ID},
        body=object_schema(("task", "seed"), task=_TASK, seed={"type": "integer"}, seat=_SEAT),
    ),
    "POST /episodes/{id}/step": Operation(
        "Perform an action.",
        path={"id": _ID},
        body=object_schema(("turn", "action"), turn=_COUNT, action={"type": "object"}),
    ),
    "POST /episodes/{id}/verdict": Operation("Verdict of the environment.", path={"id": _ID}),
    "DELETE /episodes/{id}": Operation("Close an episode.", path={"id": _ID}),
}


@dataclass(slots=True)
class _Open:
    """State of an open episode on the environment server."""

    environment: Environment
    """Environment of the episode."""
    last_used: float
    """Time of the last request, in seconds of the monotonic clock."""
    turn: int = -1
    """Number of the last turn; -1 before the first action."""
    answer: Any = None
    """Response to the last turn, for a repeated request."""
    begun: bool = False
    """Whether the environment was reset."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock of the environment, which executes one request at a time."""


class NoEpisodeError(EpisodeError):
    """No episode with the requested id is open.

    It was closed, or opened before the server started.
    """


class FullError(Exception):
    """The server has its maximum number of open episodes; answered with status 429."""


class ServedEpisodes:
    """Open episodes of an environment server, by random id.

    Args:
        make: Factory of environments, called once per episode.
        capacity: Maximum number of open episodes; more are refused with status 429.
        idle_seconds: Seconds without requests after which an episode is closed.
    """

    def __init__(self, make: Callable[[], Environment], *, capacity: int = 256, idle_seconds: float = 600.0) -> None:
        self.make, self.capacity, self.idle_seconds = make, capacity, idle_seconds
        self.open: dict[str, _Open] = {}
        self.reaped = 0
        self._is_ready = False

    async def open_episode(self) -> str:
        """Create an environment and return the id of its episode.

        Raises:
            FullError: If the maximum number of episodes is open.
        """
        await self.close_idle_episodes()
        if len(self.open) >= self.capacity:
            raise FullError(f"{self.capacity} episodes are open, which is the maximum; retry later")
        id = uuid.uuid4().hex
        self.open[id] = _Open(await call_user_function(self.make), time.monotonic())
        return id

    def get_episode(self, id: str) -> _Open:
        """Return an open episode and postpone its idle timeout.

        Raises:
            NoEpisodeError: If no episode with this id is open.
        """
        episode = self.open.get(id)
        if episode is None:
            raise NoEpisodeError(f"no open episode has the id {id[:40]}; open one with POST /episodes")
        episode.last_used = time.monotonic()
        return episode

    def get_begun(self, id: str) -> _Open:
        """Return an open episode that was reset.

        Raises:
            EpisodeError: If there is none with this id, or it was not reset.
        """
        episode = self.get_episode(id)
        if not episode.begun:
            raise EpisodeError("the episode has no task yet; send POST /episodes/{id}/reset first")
        return episode

    async def find_obstacle(self) -> str:
        """Return the reason why no episode can be opened; empty if there is none.

        An environment is created as a trial until this succeeds once.
        """
        if not self._is_ready:
            try:
                await self.make().close()
            except Exception as error:
                return f"the environment cannot be created: {type(error).__name__}: {str(error)[:200]}"
            self._is_ready = True
        return ""

    def families(self) -> Iterator[Family]:
        """Yield the metrics of the episodes for the route `/metrics`."""
        yield make_family("episodes_open", "gauge", "Open episodes.", len(self.open))
        yield make_family("episodes_capacity", "gauge", "Maximum number of open episodes.", self.capacity)
        yield make_family("episodes_expired_total", "counter", "Episodes closed as idle.", self.reaped)

    async def step(self, id: str, turn: int, action: Message) -> Any:
        """Execute an action and return its result as JSON.

        A repeated request of the last turn returns the stored result.

        Args:
            id: Id of the episode.
            turn: Number of the action in the episode, from 0.
            action: Message of the agent.

        Raises:
            EpisodeError: If the episode was not reset, or the turn does not follow the last one.
        """
        episode = self.get_begun(id)
        async with episode.lock:
            if turn == episode.turn:
                return episode.answer
            if turn != episode.turn + 1:
                raise EpisodeError(f"turn {turn} does not follow turn {episode.turn}")
            answer = result_to_wire(await call_user_function(episode.environment.step, action))
            episode.turn, episode.answer = turn, answer
            return answer

    async def close_episode(self, id: str) -> None:
        """Close an episode and its environment; do nothing if it is not open."""
        episode = self.open.pop(id, None)
        if episode is not None:
            closing = call_user_function(episode.environment.close)
            await close_within(CLOSE_SECONDS, closing, owner=f"the environment of episode {id}")

    async def close_idle_episodes(self) -> None:
        """Close episodes without requests for `idle_seconds`.

        An episode that was never reset is closed after a minute at most.
        """
        now = time.monotonic()
        late, unused = now - self.idle_seconds, now - min(self.idle_seconds, _UNUSED_SECONDS)
        for id in [
            id
            for id, episode in self.open.items()
            if episode.last_used < (late if episode.begun else unused) and not episode.lock.locked()
        ]:
            self.reaped += 1
            await self.close_episode(id)

    async def close(self) -> None:
        """Close all episodes; called when the server stops."""
        for id in list(self.open):
            await self.close_episode(id)


def build_environment_app(name: str, episodes: ServedEpisodes, source: Any = None, *, token: str = "") -> Any:
    """Build the ASGI application that serves an environment.

    Args:
        name: Name of the environment, for descriptions.
        episodes: Open episodes with the factory of the environment.
        source: Task source of the routes `/tasks` and `/held_out`; None: no tasks.
        token: Token that clients must send; empty: none, but requests must address this machine by a loopback name.

    Raises:
        RecipeError: If Starlette is not installed.
    """
    try:
        from starlette.middleware import Middleware
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(
            f"serving needs starlette and uvicorn; install them with: {install_command('serve')}"
        ) from None

    one_at_a_time = asyncio.Lock()

    async def body_of(request: Request) -> Mapping[str, Any]:
        length = request.headers.get("content-length", "")
        pieces = request.stream()
        return read_body(await receive_body(pieces, length=length, max_bytes=_MAX_BYTES, seconds=_BODY_SECONDS))

    async def begin(request: Request) -> JSONResponse:
        body = await body_of(request)
        if body.get("protocol") != PROTOCOL:
            raise TaskError(
                f"this server uses protocol {PROTOCOL}, the client protocol {truncate_value(body.get('protocol'))}"
            )
        return JSONResponse({"id": await episodes.open_episode()}, status_code=201)

    async def reset(request: Request) -> JSONResponse:
        body, episode = await body_of(request), episodes.get_episode(request.path_params["id"])
        task, seed = task_from_wire(parse_field(body, "task", dict)), parse_field(body, "seed", int)
        seat = seat_from_wire(parse_field(body, "seat", dict)) if "seat" in body else None
        async with episode.lock:
            episode.turn, episode.answer, episode.begun = -1, None, False
            with _task_errors("the environment cannot start this task"):
                if seat is not None and implements_protocol(episode.environment, TakesSeat):
                    episode.environment.take_seat(seat)
                first = await call_user_function(episode.environment.reset, task, seed=seed)
            episode.begun = True
        return JSONResponse(observation_to_wire(first))

    async def step(request: Request) -> JSONResponse:
        body = await body_of(request)
        turn, action = parse_field(body, "turn", int), Message.from_openai(parse_field(body, "action", dict))
        return JSONResponse(await episodes.step(request.path_params["id"], turn, action))

    async def verdict(request: Request) -> JSONResponse:
        episode = episodes.get_begun(request.path_params["id"])
        environment = episode.environment
        verdict = (
            await call_user_function(environment.verdict) if implements_protocol(environment, GivesVerdict) else {}
        )
        return JSONResponse(dict(verdict))

    async def end(request: Request) -> JSONResponse:
        await episodes.close_episode(request.path_params["id"])
        return JSONResponse({})

    async def task(request: Request) -> JSONResponse:
        if source is None:
            raise EpisodeError("this server has no tasks; set another task source in the recipe")
        if "count" in request.path_params:
            count = whole_number(request.path_params["count"], "count")
            if count > _MAX_HELD_OUT:
                raise TaskError(f"{count} tasks were requested at once; request {_MAX_HELD_OUT} or fewer")
            async with one_at_a_time:
                with _task_errors("the source has no such tasks"):
                    held_out = await asyncio.to_thread(source.held_out, count)
            return JSONResponse({"tasks": [task_to_wire(task) for task in held_out]})
        index = whole_number(request.path_params["index"], "index")
        with _task_errors(f"the source has no task {index}"):
            return JSONResponse(task_to_wire(source.task(index)))

    def refuse(request: Request, error: Exception) -> JSONResponse:
        codes = (
            (NoEpisodeError, 404),
            (EpisodeError, 409),
            (TaskError, 422),
            (FullError, 429),
            (KeyError | ValueError, 422),
        )
        code = next((code for kind, code in codes if isinstance(error, kind)), 500)
        if isinstance(error, RefusedError):
            code = 422 if error.status == 400 else error.status
        elif isinstance(error, RouteError):
            return JSONResponse({"error": str(error)}, error.status)
        named = "" if isinstance(error, NoEpisodeError | FullError | RefusedError) else f"{type(error).__name__}: "
        return JSONResponse({"error": f"{named}{error}"}, code, {"retry-after": "1"} if code == 429 else None)

    @asynccontextmanager
    async def lifetime(app: Any) -> AsyncIterator[None]:
        async def reaping() -> None:
            while True:
                await asyncio.sleep(max(0.05, episodes.idle_seconds / 4))
                await episodes.close_idle_episodes()

        reaper = asyncio.create_task(reaping())
        try:
            yield
        finally:
            reaper.cancel()
            await episodes.close()

    routes = [
        Route("/tasks/{index}", task),
        Route("/held_out/{count}", task),
        Route("/episodes", begin, methods=["POST"]),
        Route("/episodes/{id}/reset", reset, methods=["POST"]),
        Route("/episodes/{id}/step", step, methods=["POST"]),
        Route("/episodes/{id}/verdict", verdict, methods=["POST"]),
        Route("/episodes/{id}", end, methods=["DELETE"]),
    ]

    def health() -> Mapping[str, Any]:
        about = {"environment": name, "protocol": PROTOCOL}
        return {**about, "open": len(episodes.open), "capacity": episodes.capacity}

    service = Service(
        f"Whetstone environment: {name}",
        refuse=refuse,
        check=lambda request: None,  # the guard checked it
        find_obstacle=episodes.find_obstacle,
        health=health,
        families=episodes.families,
        operations=_OPERATIONS,
        error={"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
        security={"bearer": {"type": "http", "scheme": "bearer"}},
    )
    errors = (EpisodeError, TaskError, FullError, InfrastructureError, RefusedError, KeyError, ValueError)
    guard = Middleware(Guard, token=token)
    return http_application(routes, service, errors=errors, lifespan=lifetime, middleware=[guard])


@contextmanager
def _task_errors(problem: str) -> Iterator[None]:
    """Convert exceptions of the environment's or the source's code to task errors."""
    try:
        yield
    except (TaskError, EpisodeError, InfrastructureError):
        raise
    except Exception as error:
        raise TaskError(f"{problem}: {type(error).__name__}: {str(error)[:200]}") from error
