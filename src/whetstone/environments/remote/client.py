"""An environment that another machine serves (`whetstone environments serve`), and its tasks."""

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
from whetstone.environments.remote.guard import TOKEN
from whetstone.environments.remote.http_client import Asking, UnknownThere
from whetstone.environments.remote.wire import (
    PROTOCOL,
    field_of,
    observation_from_wire,
    result_from_wire,
    task_from_wire,
    task_to_wire,
)
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.trajectory import Task

_Read = TypeVar("_Read")
_ID = re.compile(r"[\w-]{1,128}", re.ASCII)


class Remote:
    """One episode on a server; `WHETSTONE_TOKEN` of the environment is told to it, where it asks for one.

    Args:
        url: Where it is, such as `http://localhost:8100`.
        seconds: How long one answer may take.
    """

    def __init__(self, *, url: str, seconds: float = 60.0) -> None:
        self._asking = Asking(url, seconds=seconds, token=os.environ.get(TOKEN, ""))
        self._id = ""
        self._turn = 0
        self._seat: SeatRequest | None = None

    def take_seat(self, seat: SeatRequest) -> None:
        """Set the seat of the next episode; see `TakesSeat`."""
        self._seat = seat

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin there.

        Raises:
            InfrastructureError: The server is not there, full, or of another version.
        """
        if not self._id:
            self._id = self._read(_id_in, await self._asking.ask("POST", "/episodes", {"protocol": PROTOCOL}))
        self._turn = 0
        body: dict[str, Any] = {"task": task_to_wire(task), "seed": seed}
        if self._seat is not None:
            body["seat"], self._seat = asdict(self._seat), None
        return self._read(observation_from_wire, await self._asking.ask("POST", f"/episodes/{self._id}/reset", body))

    async def step(self, action: Message) -> StepResult:
        """Carry it out there. Asked again, it is not carried out twice.

        Raises:
            InfrastructureError: The server is gone, or answers what no environment says.
        """
        if not self._id:
            raise EpisodeError("a step before the first reset")
        body = {"turn": self._turn, "action": action.to_openai()}
        result = self._read(result_from_wire, await self._under_way("step", body))
        self._turn += 1
        return result

    async def verdict(self) -> Mapping[str, Any]:
        """What the environment says of how it went."""
        return self._read(_verdict, await self._under_way("verdict", {}))

    async def close(self) -> None:
        """End the episode there; a server that is gone has ended it already."""
        id, self._id = self._id, ""
        try:
            if id:
                with contextlib.suppress(InfrastructureError, EpisodeError, TaskError):
                    await self._asking.ask("DELETE", f"/episodes/{id}")
        finally:
            await self._asking.close()

    async def _under_way(self, what: str, body: Mapping[str, Any]) -> Any:
        """What is said to a question about the episode, which began there.

        Raises:
            InfrastructureError: The server began again since, or has closed the episode as forgotten.
        """
        try:
            return await self._asking.ask("POST", f"/episodes/{self._id}/{what}", body)
        except UnknownThere as error:
            raise InfrastructureError(f"{error}: the server began again, or nobody had asked for too long") from None

    def _read(self, as_what: Callable[[Any], _Read], row: Any) -> _Read:
        return _readable(self._asking.url, as_what, row)


class RemoteTasks:
    """The tasks of a server.

    Args:
        url: Where it is.

    Raises:
        TaskError: It is not there or has none.
    """

    def __init__(self, *, url: str) -> None:
        self.url = url
        self._known: dict[int, Task] = {}
        self.task(0)

    def task(self, index: int) -> Task:
        """Training task `index`, as the server has it."""
        if index not in self._known:
            self._known[index] = self._asked(f"/tasks/{index}", task_from_wire)
        return self._known[index]

    def held_out(self, count: int) -> Sequence[Task]:
        """The held-out tasks, as the server has them."""
        return self._asked(f"/held_out/{count}", lambda row: list(map(task_from_wire, field_of(row, "tasks", list))))

    def _asked(self, path: str, as_what: Callable[[Any], _Read]) -> _Read:
        async def ask() -> Any:
            asking = Asking(self.url, token=os.environ.get(TOKEN, ""))
            try:
                return await asking.ask("GET", path)
            finally:
                await asking.close()

        with ThreadPoolExecutor(1) as thread:  # a loop may be running here already
            try:
                return _readable(self.url, as_what, thread.submit(asyncio.run, ask()).result())
            except (InfrastructureError, EpisodeError) as error:
                raise TaskError(f"tasks: {error}") from None


def _readable(url: str, as_what: Callable[[Any], _Read], row: Any) -> _Read:
    try:
        return as_what(row)
    except (ValueError, RecursionError) as error:
        said = " ".join(f"{type(error).__name__}: {error}"[:200].split())
        raise InfrastructureError(f"{url}: what it says cannot be read: {said}") from None


def _id_in(row: Any) -> str:
    id = field_of(row, "id", str)
    if not _ID.fullmatch(id):
        raise ValueError(f"an id of letters and digits was to be here, got {id[:80]!r}")
    return id


def _verdict(row: Any) -> Mapping[str, Any]:
    return field_of({"verdict": row}, "verdict", dict)
