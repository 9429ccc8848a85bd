"""Client of AgentGym's environment servers: `/create`, `/reset`, `/step`, `/close`, with text actions and observations.

Field names differ between servers: an environment is `id` or `env_idx`; an item is `data_idx`, `item_id`, `session_id`,
`game`, `seed`, or `id` if that is not the environment. They are read from the server's OpenAPI document.

Note:
    All of the following occurs in such servers. An error has status 200. The id that `create` returns may be another
    client's, since nothing closes environments, and a restarted server counts ids from 0 and reuses those of
    running episodes. An id that is already in use here is refused, and the episode that has it is lost too. An
    error after an action may be the agent's (`Invalid action`) or the server's (the environment is lost): the
    client checks whether the environment still exists, and if so, the agent reads the error.

Source: AgentGym, arXiv:2406.04151, and its servers' interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from whetstone.chat import Message, system, user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import (
    JsonHttpClient,
    NotFoundError,
    RequestRefusedError,
    parse_flag,
    parse_reward,
)
from whetstone.environments.text_actions import (
    Actions,
    command_result,
    command_tool,
    max_command_characters,
    parse_command,
)
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import Task

_HANDLES = ("env_idx", "id")
"""Field names of an environment's id, the most likely first."""
_INDICES = ("data_idx", "item_id", "session_id", "task_id", "game", "idx", "id", "seed")
"""Field names of an item, the most likely first."""
_in_use: dict[tuple[str, str], AgentGym] = {}
"""Environment that uses an id, by URL of the server and id."""


@dataclass(frozen=True, slots=True)
class _Body:
    """Fields of the JSON body of a server route, as its OpenAPI document lists them."""

    fields: tuple[str, ...] = ()
    """Names of all fields."""
    required: tuple[str, ...] = ()
    """Names of the required fields."""


class AgentGym:
    """Environment that runs on a server of AgentGym.

    The item is the task's `data_idx`, under the server's name for it. Other fields of the server's `reset` and `create`
    are read from `reset` and `create` in the task's private data.

    Ends: as the environment does.

    Args:
        url: URL of the server, with the path of the environment if it serves several (`…/wordle`).
        actions: Commands as a call of `act`, or as text.
        full_text: Use the full text of a message as the command, as for SQL; false: its last line.
        instruction: System message; the servers do not explain their rules.
        success_at: Minimum score, or reward if there is no score, of a success, at any turn. The maximum of
            ScienceWorld is 100, that of Wordle 0.
        seconds: Timeout of one request in seconds.
    """

    def __init__(
        self,
        *,
        url: str,
        actions: Actions = "text",
        full_text: bool = False,
        instruction: str = "",
        success_at: float = 1.0,
        seconds: float = 60.0,
    ) -> None:
        self._asking = JsonHttpClient(url, seconds=seconds)
        self.actions, self.full_text, self.instruction, self.success_at = actions, full_text, instruction, success_at
        self.specs = (command_tool(()),) if actions == "call" else ()
        self._routes: dict[str, _Body] | None = None
        self._id: Any = None
        self._value, self._reached, self._over, self._lost = 0.0, False, False, False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Create an environment on the server, unless there is one, and reset it.

        Raises:
            InfrastructureError: If the server is unavailable, or gives the id to two episodes.
            TaskError: If the task lacks a required field.
        """
        if self._routes is None:
            self._routes = await self._read_routes()
        if self._id is None or self._lost:
            await self._create(task, seed)
        self._value, self._reached, self._over = 0.0, False, False
        body = {**self._request_body("/reset", task, "reset", seed), **self._handle_fields}
        response = await self._asking.send_request("POST", "/reset", body)
        observation = _text(response)
        text = f"{task.prompt}\n{observation}" if task.prompt and observation else task.prompt or observation
        opening = (system(self.instruction), user(text)) if self.instruction else (user(text),)
        return Observation(opening, self.specs)

    async def step(self, action: Message) -> StepResult:
        """Execute one command on the server.

        An error that concerns the command is shown to the model.

        Raises:
            EpisodeError: If no episode is in progress.
            InfrastructureError: If the server failed, or lost the environment.
        """
        if self._id is None or self._over:
            raise EpisodeError("step was called outside an episode; call reset first")
        if self._lost:
            raise InfrastructureError(
                f"{self._asking.url}: the server restarted and gave the environment of this episode to another episode"
            )
        command = parse_command(action, self.actions, multiline=self.full_text, one_line=False)
        if command is None:
            return StepResult(
                Observation(
                    (user(f"Give one action, of {max_command_characters(self.full_text)} characters or fewer."),)
                )
            )
        try:
            response = await self._asking.send_request(
                "POST", "/step", {**self._handle_fields, "action": command}, acting=True
            )
        except RequestRefusedError as refused:
            await self._check_exists(str(refused))
            self._over = refused.status == 0  # an action without an answer may still be executed
            answer, calls = command_result(action, f"error: {refused}", understood=False)
            return StepResult(Observation(answer), terminated=self._over, calls=calls)
        where = f"{self._asking.url}/step"
        if not isinstance(response, Mapping):
            raise InfrastructureError(f"{where}: the response is not a JSON object: {str(response)[:80]!r}")
        reward, score = parse_reward(response.get("reward"), where), response.get("score")
        self._value = reward if score is None else parse_reward(score, where)
        self._reached = self._reached or self._value >= self.success_at
        terminated = parse_flag(response.get("done", response.get("terminated")), where)
        truncated = parse_flag(response.get("truncated"), where) and not terminated
        self._over = terminated or truncated
        answer, calls = command_result(action, _text(response))
        return StepResult(Observation(answer), reward=reward, terminated=terminated, truncated=truncated, calls=calls)

    async def verdict(self) -> Mapping[str, Any]:
        """Return whether the required score was reached, and the last score as a fraction."""
        share = self._value / self.success_at if self.success_at > 0 else 0.0
        return {"success": self._reached, "score": 1.0 if self._reached else max(0.0, min(1.0, share))}

    async def close(self) -> None:
        """Close the environment on the server.

        Errors of an unavailable server are ignored.
        """
        try:
            if self._id is not None and not self._lost:
                _in_use.pop((self._asking.url, str(self._id)), None)
                with contextlib.suppress(InfrastructureError, EpisodeError, TaskError):
                    await self._asking.send_request("POST", "/close", self._handle_fields)
        finally:
            self._id, self._lost = None, False
            await self._asking.close()

    async def _create(self, task: Task, seed: int) -> None:
        """Create an environment on the server and register its id.

        Raises:
            InfrastructureError: If the response has no id, or another episode uses the id.
        """
        self._id, self._lost = None, False
        created = await self._asking.send_request(
            "POST", "/create", self._request_body("/create", task, "create", seed)
        )
        id = created.get("id", created.get("env_idx")) if isinstance(created, Mapping) else created
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise InfrastructureError(f"{self._asking.url}/create: the response has no id: {str(created)[:80]}")
        key = (self._asking.url, str(id))
        if key in _in_use:
            _in_use.pop(key)._lost = True
            raise InfrastructureError(
                f"{self._asking.url}: the server gave the id {id} to two episodes: it restarted, or has fewer "
                "environments than there are episodes"
            )
        self._id, _in_use[key] = id, self

    # ------------------------------------------------------------ field names of the server

    async def _read_routes(self) -> dict[str, _Body]:
        """Return the fields of each route from the server's OpenAPI document.

        Empty if the server has no such document.
        """
        prefix = urlsplit(self._asking.url).path
        root = JsonHttpClient(self._asking.url.removesuffix(prefix), seconds=self._asking.seconds) if prefix else None
        try:
            for asking, before in ((self._asking, ""), *([(root, prefix)] if root else [])):
                with contextlib.suppress(NotFoundError):  # the server has no document there
                    document = await asking.send_request("GET", "/openapi.json")
                    bodies = {path: _body(document, f"{before}{path}") for path in ("/create", "/reset", "/step")}
                    if bodies["/step"].fields:
                        return bodies
        finally:
            if root:
                await root.close()
        return {}

    @property
    def _handle_fields(self) -> dict[str, Any]:
        """Return the fields that identify the environment in a request."""
        fields = (self._routes or {}).get("/step", _Body()).fields
        known = [name for name in _HANDLES if name in fields][:1]
        return dict.fromkeys(known or _HANDLES, self._id)

    def _request_body(self, route: str, task: Task, key: str, seed: int) -> dict[str, Any]:
        """Return the request body of a route for a task.

        Args:
            route: Path of the route.
            task: Task whose `data_idx` and own fields are sent.
            key: Key of the own fields in the task's private data.
            seed: Seed of the episode, sent if the route has a field for it.

        Raises:
            TaskError: If the task lacks a required field.
        """
        own = dict(task.private.get(key, {}))
        index = task.private.get("data_idx", 0)
        if not self._routes:
            return {"data_idx": index, **own} if key == "reset" else own
        body = self._routes[route]
        handles = () if key == "create" else tuple(self._handle_fields)
        items = [name for name in _INDICES if name in body.fields and name not in handles]
        fields: dict[str, Any] = {}
        if items and (key == "reset" or items[0] in body.required):
            fields[items[0]] = index
            if "seed" in items[1:]:
                fields["seed"] = seed % 2**31
        fields |= own
        missing = [name for name in body.required if name not in fields and name not in handles]
        if missing:
            named = ", ".join(missing)
            raise TaskError(
                f"{self._asking.url}{route}: the server requires {named}; set the fields in the task, under `{key}`"
            )
        return fields

    async def _check_exists(self, problem: str) -> None:
        """Check that the environment that returned an error still exists on the server.

        If the server has no route for the check, the environment is assumed to exist.

        Raises:
            InfrastructureError: If it does not exist, so that the error is not the agent's.
        """
        try:
            await self._asking.send_request("GET", f"/observation?id={self._id}&env_idx={self._id}", acting=True)
        except RequestRefusedError as refused:
            if refused.status not in (404, 405):
                raise InfrastructureError(f"{self._asking.url}: {problem}; then {refused}") from None


def _body(document: Any, path: str) -> _Body:
    """Return the JSON fields of a route in an OpenAPI document.

    Empty if the document does not specify them.
    """
    try:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = content["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return _Body(tuple(schema.get("properties", ())), tuple(schema.get("required", ())))
    except (KeyError, TypeError, AttributeError):
        return _Body()


def _text(response: Any) -> str:
    """Return the observation of a response as text, after its goal if it has one."""
    if isinstance(response, Sequence) and not isinstance(response, str):  # a text and further values
        response = response[0] if response else ""
    if not isinstance(response, Mapping):
        return sanitize_text(str(response))
    observation = response.get("observation", response.get("state", ""))
    goal = response.get("task_description") or response.get("object")
    return sanitize_text(f"{goal}\n{observation}" if isinstance(goal, str) and goal else str(observation))
