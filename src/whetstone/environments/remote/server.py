"""An environment of Whetstone's over HTTP, for any client, many episodes at once.

    GET    /health · /ready · /metrics · /openapi.json       see `network.http_layer`
    GET    /tasks/{index} · /held_out/{count}  tasks of the source, where there is one
    POST   /episodes                          {"protocol": 1} → {"id": …}
    POST   /episodes/{id}/reset               {"task": …, "seed": …} → the opening
    POST   /episodes/{id}/step                {"turn": 0, "action": …} → what it led to
    POST   /episodes/{id}/verdict             → what the environment says of how it went
    DELETE /episodes/{id}

Messages are those of OpenAI's API.

Easy to get wrong: a client that does not hear the answer asks again, and the action must not be carried out twice: an
action has the number of its turn, and the answer of the last turn is kept. A client that dies never deletes: an episode
nobody asked for a while is closed. An id says nothing of other ids, so nobody steps into another's episode. Tasks have
their answers with them, so who may ask is decided in front of all of it (`guard.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from whetstone.chat import Message
from whetstone.chat.api.asked import RefusedError
from whetstone.chat.api.fields import read_body, receive_body, shortened, whole_number
from whetstone.contracts import fulfils
from whetstone.environments.protocol import Environment, TakesSeat
from whetstone.environments.remote.guard import Guard
from whetstone.environments.remote.wire import (
    PROTOCOL,
    field_of,
    observation_to_wire,
    result_to_wire,
    seat_from_wire,
    task_from_wire,
    task_to_wire,
)
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError
from whetstone.extras import install_command
from whetstone.network.http_layer import Family, RouteError, Service, http_application, make_family
from whetstone.network.openapi import Operation
from whetstone.tools.protocol import GivesVerdict
from whetstone.tools.threads import call_user_function
from whetstone.waiting import CLOSE_SECONDS, close_within

_MOST_HELD_OUT = 4096
_MOST_BYTES, _BODY_SECONDS = 16 << 20, 60.0
"""Maximum size of a request, and time until it is complete."""
_UNUSED_SECONDS = 60.0
"""After which an episode that was asked for and never begun is closed, however long others may think."""

_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_TASK = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "prompt": {"type": "string"},
        "private": {"type": "object"},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
_SEAT = {
    "type": "object",
    "required": ["role", "table", "seed"],
    "properties": {"role": {"type": "string"}, "table": {"type": "string"}, "seed": {"type": "integer"}},
}
_OPERATIONS = {
    "GET /tasks/{index}": Operation("A task of the source.", path={"index": {"type": "integer", "minimum": 0}}),
    "GET /held_out/{count}": Operation(
        "Held-out tasks.", path={"count": {"type": "integer", "minimum": 0, "maximum": _MOST_HELD_OUT}}
    ),
    "POST /episodes": Operation(
        "Open an episode.",
        body={"type": "object", "required": ["protocol"], "properties": {"protocol": {"const": PROTOCOL}}},
        status=201,
    ),
    "POST /episodes/{id}/reset": Operation(
        "Start a task.",
        path={"id": _ID},
        body={
            "type": "object",
            "required": ["task", "seed"],
            "properties": {"task": _TASK, "seed": {"type": "integer"}, "seat": _SEAT},
        },
    ),
    "POST /episodes/{id}/step": Operation(
        "Perform an action.",
        path={"id": _ID},
        body={
            "type": "object",
            "required": ["turn", "action"],
            "properties": {"turn": {"type": "integer", "minimum": 0}, "action": {"type": "object"}},
        },
    ),
    "POST /episodes/{id}/verdict": Operation("Verdict of the environment.", path={"id": _ID}),
    "DELETE /episodes/{id}": Operation("Close an episode.", path={"id": _ID}),
}


@dataclass(slots=True)
class _Open:
    """An episode somebody plays."""

    environment: Environment
    asked: float
    turn: int = -1
    answer: Any = None
    begun: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class NoEpisodeError(EpisodeError):
    """No episode of this id is open: it was closed, or begun before the server was."""


class FullError(Exception):
    """As many episodes are open as the server allows."""


class Episodes:
    """The open episodes of a server.

    Args:
        make: Makes an environment.
        capacity: Episodes open at once; more are refused with 429.
        idle_seconds: After which an episode nobody asked is closed.
    """

    def __init__(self, make: Callable[[], Environment], *, capacity: int = 256, idle_seconds: float = 600.0) -> None:
        self.make, self.capacity, self.idle_seconds = make, capacity, idle_seconds
        self.open: dict[str, _Open] = {}
        self.reaped = 0
        self._is_ready = False

    async def begin(self) -> str:
        """A new episode's id.

        Raises:
            FullError: There are as many as may be.
        """
        await self.reap()
        if len(self.open) >= self.capacity:
            raise FullError(f"{self.capacity} episodes are open, as many as may be; ask again later")
        id = uuid.uuid4().hex
        self.open[id] = _Open(await call_user_function(self.make), time.monotonic())
        return id

    def get(self, id: str) -> _Open:
        """An open episode.

        Raises:
            NoEpisodeError: There is none of this id.
        """
        episode = self.open.get(id)
        if episode is None:
            raise NoEpisodeError(f"there is no open episode {id[:40]}")
        episode.asked = time.monotonic()
        return episode

    def get_begun(self, id: str) -> _Open:
        """An open episode that was reset.

        Raises:
            EpisodeError: There is none of this id, or it was not reset.
        """
        episode = self.get(id)
        if not episode.begun:
            raise EpisodeError("the episode has no task yet: POST /episodes/{id}/reset")
        return episode

    async def find_obstacle(self) -> str:
        """Return why no episode can be opened; empty if an environment was created once."""
        if not self._is_ready:
            try:
                await self.make().close()
            except Exception as error:
                return f"the environment cannot be created: {type(error).__name__}: {str(error)[:200]}"
            self._is_ready = True
        return ""

    def families(self) -> Iterator[Family]:
        """Return metrics of the episodes."""
        yield make_family("episodes_open", "gauge", "Open episodes.", len(self.open))
        yield make_family("episodes_capacity", "gauge", "Maximum number of open episodes.", self.capacity)
        yield make_family("episodes_expired_total", "counter", "Episodes that nobody used in time.", self.reaped)

    async def step(self, id: str, turn: int, action: Message) -> Any:
        """The answer to an action; to the last one again, what it was."""
        episode = self.get_begun(id)
        async with episode.lock:
            if turn == episode.turn:
                return episode.answer
            if turn != episode.turn + 1:
                raise EpisodeError(f"turn {turn} does not come behind turn {episode.turn}")
            answer = result_to_wire(await call_user_function(episode.environment.step, action))
            episode.turn, episode.answer = turn, answer
            return answer

    async def end(self, id: str) -> None:
        """Close one; one that is not there is closed already."""
        episode = self.open.pop(id, None)
        if episode is not None:
            closing = call_user_function(episode.environment.close)
            await close_within(CLOSE_SECONDS, closing, owner=f"the environment of episode {id}")

    async def reap(self) -> None:
        """Close those nobody asked for too long."""
        now = time.monotonic()
        late, unused = now - self.idle_seconds, now - min(self.idle_seconds, _UNUSED_SECONDS)
        for id in [
            id
            for id, episode in self.open.items()
            if episode.asked < (late if episode.begun else unused) and not episode.lock.locked()
        ]:
            self.reaped += 1
            await self.end(id)

    async def close(self) -> None:
        """Close all."""
        for id in list(self.open):
            await self.end(id)


def application(name: str, episodes: Episodes, source: Any = None, *, token: str = "") -> Any:
    """The server, for any ASGI runner.

    Args:
        token: What whoever asks has to know; empty: nothing, but that this machine is asked by its own name.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.middleware import Middleware
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    one_at_a_time = asyncio.Lock()

    async def body_of(request: Request) -> Mapping[str, Any]:
        length = request.headers.get("content-length", "")
        pieces = request.stream()
        return read_body(await receive_body(pieces, length=length, max_bytes=_MOST_BYTES, seconds=_BODY_SECONDS))

    async def begin(request: Request) -> JSONResponse:
        body = await body_of(request)
        if body.get("protocol") != PROTOCOL:
            raise TaskError(f"this server speaks protocol {PROTOCOL}, the client {shortened(body.get('protocol'))}")
        return JSONResponse({"id": await episodes.begin()}, status_code=201)

    async def reset(request: Request) -> JSONResponse:
        body, episode = await body_of(request), episodes.get(request.path_params["id"])
        task, seed = task_from_wire(field_of(body, "task", dict)), field_of(body, "seed", int)
        seat = seat_from_wire(field_of(body, "seat", dict)) if "seat" in body else None
        async with episode.lock:
            episode.turn, episode.answer, episode.begun = -1, None, False
            with _task_errors("the environment cannot start this task"):
                if seat is not None and fulfils(episode.environment, TakesSeat):
                    episode.environment.take_seat(seat)
                first = await call_user_function(episode.environment.reset, task, seed=seed)
            episode.begun = True
        return JSONResponse(observation_to_wire(first))

    async def step(request: Request) -> JSONResponse:
        body = await body_of(request)
        turn, action = field_of(body, "turn", int), Message.from_openai(field_of(body, "action", dict))
        return JSONResponse(await episodes.step(request.path_params["id"], turn, action))

    async def verdict(request: Request) -> JSONResponse:
        episode = episodes.get_begun(request.path_params["id"])
        environment = episode.environment
        verdict = await call_user_function(environment.verdict) if fulfils(environment, GivesVerdict) else {}
        return JSONResponse(dict(verdict))

    async def end(request: Request) -> JSONResponse:
        await episodes.end(request.path_params["id"])
        return JSONResponse({})

    async def task(request: Request) -> JSONResponse:
        if source is None:
            raise EpisodeError("this server has no tasks; bring your own")
        if "count" in request.path_params:
            count = whole_number(request.path_params["count"], "count")
            if count > _MOST_HELD_OUT:
                raise TaskError(f"{count} tasks at once; {_MOST_HELD_OUT} or fewer")
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
                await episodes.reap()

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
    """Report an exception of the environment's or the source's own code as an error of the task."""
    try:
        yield
    except (TaskError, EpisodeError, InfrastructureError):
        raise
    except Exception as error:
        raise TaskError(f"{problem}: {type(error).__name__}: {str(error)[:200]}") from error
