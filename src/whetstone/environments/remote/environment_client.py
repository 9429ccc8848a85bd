"""Client of an environment that another machine serves (`whetstone environments serve`), and of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from whetstone.chat import Message
from whetstone.environments.protocol import Observation, SeatRequest, StepResult
from whetstone.environments.remote.auth import TOKEN
from whetstone.environments.remote.http_client import JsonHttpClient, NotFoundError
from whetstone.environments.remote.serialization import (
    PROTOCOL,
    observation_from_wire,
    parse_field,
    result_from_wire,
    task_from_wire,
    task_to_wire,
)
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.trajectory import Task

_Read = TypeVar("_Read")
_ID = re.compile(r"[\w-]{1,128}", re.ASCII)
"""Pattern of an episode id."""


class Remote:
    """Environment whose episodes run on a server of `whetstone environments serve`.

    The environment variable `WHETSTONE_TOKEN` has the token that is sent to the server.

    Args:
        url: URL of the server, such as `http://localhost:8100`.
        seconds: Timeout of one request in seconds.
    """

    def __init__(self, *, url: str, seconds: float = 60.0) -> None:
        self._asking = JsonHttpClient(url, seconds=seconds, token=os.environ.get(TOKEN, ""))
        self._id = ""
        self._turn = 0
        self._seat: SeatRequest | None = None

    def take_seat(self, seat: SeatRequest) -> None:
        """Set the seat of the next episode; see `TakesSeat`."""
        self._seat = seat

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Open an episode on the server, start the task and return the first observation.

        Raises:
            InfrastructureError: If the server is unreachable, full, or of another version.
        """
        if not self._id:
            self._id = self._read(
                _parse_id, await self._asking.send_request("POST", "/episodes", {"protocol": PROTOCOL})
            )
        self._turn = 0
        body: dict[str, Any] = {"task": task_to_wire(task), "seed": seed}
        if self._seat is not None:
            body["seat"], self._seat = asdict(self._seat), None
        return self._read(
            observation_from_wire, await self._asking.send_request("POST", f"/episodes/{self._id}/reset", body)
        )

    async def step(self, action: Message) -> StepResult:
        """Execute an action on the server.

        A repeated request is not executed twice: it has the number of the turn.

        Raises:
            EpisodeError: If the environment was not reset.
            InfrastructureError: If the server is unavailable, or its response is not a valid result.
        """
        if not self._id:
            raise EpisodeError("step was called before the first reset; call reset first")
        body = {"turn": self._turn, "action": action.to_openai()}
        result = self._read(result_from_wire, await self._ask_episode("step", body))
        self._turn += 1
        return result

    async def verdict(self) -> Mapping[str, Any]:
        """Return the verdict of the environment on the server."""
        return self._read(_parse_verdict, await self._ask_episode("verdict", {}))

    async def close(self) -> None:
        """Close the episode on the server; errors of an unavailable server are ignored.

        The server closes an episode that is idle.
        """
        id, self._id = self._id, ""
        try:
            if id:
                with contextlib.suppress(InfrastructureError, EpisodeError, TaskError):
                    await self._asking.send_request("DELETE", f"/episodes/{id}")
        finally:
            await self._asking.close()

    async def _ask_episode(self, what: str, body: Mapping[str, Any]) -> Any:
        """Send a request about the running episode and return the JSON of its response.

        Raises:
            InfrastructureError: If the server restarted, or has closed the episode as idle.
        """
        try:
            return await self._asking.send_request("POST", f"/episodes/{self._id}/{what}", body)
        except NotFoundError as error:
            raise InfrastructureError(f"{error}: the server restarted, or closed the episode as idle") from None

    def _read(self, parse: Callable[[Any], _Read], row: Any) -> _Read:
        return _parse_answer(self._asking.url, parse, row)


class RemoteTasks:
    """Task source of a server of `whetstone environments serve`.

    Args:
        url: URL of the server.

    Raises:
        TaskError: If the server is unreachable or has no tasks.
    """

    def __init__(self, *, url: str) -> None:
        self.url = url
        self._known: dict[int, Task] = {}
        self.task(0)

    def task(self, index: int) -> Task:
        """Return training task `index` of the server; cached.

        Raises:
            TaskError: If the server is unreachable or has no such task.
        """
        if index not in self._known:
            self._known[index] = self._fetch(f"/tasks/{index}", task_from_wire)
        return self._known[index]

    def held_out(self, count: int) -> Sequence[Task]:
        """Return `count` held-out tasks of the server, or all if there are fewer.

        Raises:
            TaskError: If the server is unreachable or has no tasks.
        """
        return self._fetch(f"/held_out/{count}", lambda row: list(map(task_from_wire, parse_field(row, "tasks", list))))

    def _fetch(self, path: str, parse: Callable[[Any], _Read]) -> _Read:
        """Request and parse tasks in a separate thread.

        An event loop may be running in this thread.

        Raises:
            TaskError: If the server is unreachable or refuses the request.
        """

        async def ask() -> Any:
            asking = JsonHttpClient(self.url, token=os.environ.get(TOKEN, ""))
            try:
                return await asking.send_request("GET", path)
            finally:
                await asking.close()

        with ThreadPoolExecutor(1) as thread:  # a loop may be running here already
            try:
                return _parse_answer(self.url, parse, thread.submit(asyncio.run, ask()).result())
            except (InfrastructureError, EpisodeError) as error:
                raise TaskError(f"tasks: {error}") from None


def _parse_answer(url: str, parse: Callable[[Any], _Read], row: Any) -> _Read:
    """Parse a response.

    Raises:
        InfrastructureError: If the response is invalid.
    """
    try:
        return parse(row)
    except (ValueError, RecursionError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}"[:200].split())
        raise InfrastructureError(f"{url}: the response is invalid: {problem}") from None


def _parse_id(row: Any) -> str:
    """Parse the id of an opened episode.

    Raises:
        ValueError: If it is missing or has other characters than letters, digits, `_` and `-`.
    """
    id = parse_field(row, "id", str)
    if not _ID.fullmatch(id):
        raise ValueError(f"expected an id of letters and digits, got {id[:80]!r}")
    return id


def _parse_verdict(row: Any) -> Mapping[str, Any]:
    return parse_field({"verdict": row}, "verdict", dict)
