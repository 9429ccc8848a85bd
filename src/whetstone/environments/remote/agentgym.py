"""A client of AgentGym's environment servers: `/create`, `/reset`, `/step`, `/close`, text in and out.

Each of them has names of its own: an environment is `id` or `env_idx`, an item `data_idx`, `item_id`, `session_id`,
`game`, `seed`, or `id` where that is not the environment. They are read from the server's own specification.

Easy to get wrong, all seen in servers of this kind: an error comes with status 200; the id a `create` gives may be
another client's; nobody closes; one that began again counts its ids from 0, and gives those of episodes under way to
others. An id that is in use here already is refused, and whoever has it is lost, too. An error behind an action may be
the agent's (`Invalid action`) or the server's (it has lost the environment): the environment is asked whether it is
still there, and where it is, the agent reads the error.

Source: AgentGym, arXiv:2406.04151, and its servers' interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from whetstone.chat import Message, system, user
from whetstone.environments.commands import Actions, answered, command_of, longest, tool_of
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import Asking, Refused, UnknownThere, flag_of, reward_of
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.tools.plain_text import plain
from whetstone.trajectory import Task

_HANDLES = ("env_idx", "id")
_INDICES = ("data_idx", "item_id", "session_id", "task_id", "game", "idx", "id", "seed")
"""What an item is called, the likeliest first."""
_in_use: dict[tuple[str, str], AgentGym] = {}


@dataclass(frozen=True, slots=True)
class _Body:
    """What a route takes."""

    fields: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


class AgentGym:
    """One environment of a server. Ends: as the environment does.

    Which item: the task's `data_idx`, whatever the server calls it; what else its reset or create takes is under
    `reset` and `create` in the task's private data, by the server's names.

    Args:
        url: URL of the server, with the path of the environment if it serves several (`…/wordle`).
        actions: Commands as a call of `act`, or as text.
        full_text: Use the full text of a message as the command, as for SQL; false: its last line.
        instruction: System message; the servers do not explain their rules.
        success_at: Minimum score, or reward if there is no score, of a success, at any turn. The maximum
            of ScienceWorld is 100, that of Wordle 0.
        seconds: How long one answer may take.
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
        self._asking = Asking(url, seconds=seconds)
        self.actions, self.full_text, self.instruction, self.success_at = actions, full_text, instruction, success_at
        self.specs = (tool_of(()),) if actions == "call" else ()
        self._routes: dict[str, _Body] | None = None
        self._id: Any = None
        self._value, self._reached, self._over, self._lost = 0.0, False, False, False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Create an environment, where there is none, and reset it."""
        if self._routes is None:
            self._routes = await self._specified()
        if self._id is None or self._lost:
            await self._create(task, seed)
        self._value, self._reached, self._over = 0.0, False, False
        body = {**self._given("/reset", task, "reset", seed), **self._named}
        said = await self._asking.ask("POST", "/reset", body)
        shown = _text(said)
        text = f"{task.prompt}\n{shown}" if task.prompt and shown else task.prompt or shown
        opening = (system(self.instruction), user(text)) if self.instruction else (user(text),)
        return Observation(opening, self.specs)

    async def step(self, action: Message) -> StepResult:
        """One action."""
        if self._id is None or self._over:
            raise EpisodeError("a step outside an episode; reset begins another")
        if self._lost:
            raise InfrastructureError(f"{self._asking.url} began again: it gave this episode's environment to another")
        command = command_of(action, self.actions, whole=self.full_text, one_line=False)
        if command is None:
            return StepResult(
                Observation((user(f"Give one action, of {longest(self.full_text)} characters or fewer."),))
            )
        try:
            said = await self._asking.ask("POST", "/step", {**self._named, "action": command}, acting=True)
        except Refused as refused:
            await self._still_there(str(refused))
            self._over = refused.status == 0  # what it did not answer to may happen yet
            answer, calls = answered(action, f"error: {refused}", understood=False)
            return StepResult(Observation(answer), terminated=self._over, calls=calls)
        where = f"{self._asking.url}/step"
        if not isinstance(said, Mapping):
            raise InfrastructureError(f"{where}: its answer is no object: {str(said)[:80]!r}")
        reward, score = reward_of(said.get("reward"), where), said.get("score")
        self._value = reward if score is None else reward_of(score, where)
        self._reached = self._reached or self._value >= self.success_at
        terminated = flag_of(said.get("done", said.get("terminated")), where)
        truncated = flag_of(said.get("truncated"), where) and not terminated
        self._over = terminated or truncated
        answer, calls = answered(action, _text(said))
        return StepResult(Observation(answer), reward=reward, terminated=terminated, truncated=truncated, calls=calls)

    async def verdict(self) -> Mapping[str, Any]:
        """Whether a score was enough, and the last one as a share of that, from 0 to 1."""
        share = self._value / self.success_at if self.success_at > 0 else 0.0
        return {"success": self._reached, "score": 1.0 if self._reached else max(0.0, min(1.0, share))}

    async def close(self) -> None:
        """Close it there."""
        try:
            if self._id is not None and not self._lost:
                _in_use.pop((self._asking.url, str(self._id)), None)
                with contextlib.suppress(InfrastructureError, EpisodeError, TaskError):
                    await self._asking.ask("POST", "/close", self._named)
        finally:
            self._id, self._lost = None, False
            await self._asking.close()

    async def _create(self, task: Task, seed: int) -> None:
        self._id, self._lost = None, False
        created = await self._asking.ask("POST", "/create", self._given("/create", task, "create", seed))
        id = created.get("id", created.get("env_idx")) if isinstance(created, Mapping) else created
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise InfrastructureError(f"{self._asking.url}/create gave no id: {str(created)[:80]}")
        key = (self._asking.url, str(id))
        if key in _in_use:
            _in_use.pop(key)._lost = True
            raise InfrastructureError(
                f"{self._asking.url} gave the id {id} to two episodes: it began again, or holds fewer environments"
                " than there are episodes"
            )
        self._id, _in_use[key] = id, self

    # ------------------------------------------------------------ what it is called there

    async def _specified(self) -> dict[str, _Body]:
        """What each route takes, as the server specifies it; nothing where it does not."""
        prefix = urlsplit(self._asking.url).path
        root = Asking(self._asking.url.removesuffix(prefix), seconds=self._asking.seconds) if prefix else None
        try:
            for asking, before in ((self._asking, ""), *([(root, prefix)] if root else [])):
                with contextlib.suppress(UnknownThere):  # it has none there
                    document = await asking.ask("GET", "/openapi.json")
                    found = {path: _body(document, f"{before}{path}") for path in ("/create", "/reset", "/step")}
                    if found["/step"].fields:
                        return found
        finally:
            if root:
                await root.close()
        return {}

    @property
    def _named(self) -> dict[str, Any]:
        """The environment as its server knows it."""
        fields = (self._routes or {}).get("/step", _Body()).fields
        known = [name for name in _HANDLES if name in fields][:1]
        return dict.fromkeys(known or _HANDLES, self._id)

    def _given(self, route: str, task: Task, key: str, seed: int) -> dict[str, Any]:
        """What a route is told of a task.

        Raises:
            TaskError: It takes something that the task does not say.
        """
        own = dict(task.private.get(key, {}))
        index = task.private.get("data_idx", 0)
        if not self._routes:
            return {"data_idx": index, **own} if key == "reset" else own
        body = self._routes[route]
        handles = () if key == "create" else tuple(self._named)
        items = [name for name in _INDICES if name in body.fields and name not in handles]
        given: dict[str, Any] = {}
        if items and (key == "reset" or items[0] in body.required):
            given[items[0]] = index
            if "seed" in items[1:]:
                given["seed"] = seed % 2**31
        given |= own
        missing = [name for name in body.required if name not in given and name not in handles]
        if missing:
            named = ", ".join(missing)
            raise TaskError(f"{self._asking.url}{route} takes {named}: give it in the task, under `{key}`")
        return given

    async def _still_there(self, said: str) -> None:
        """See that the environment an error came from is there; one that cannot say is.

        Raises:
            InfrastructureError: It is not, so the error is none of the agent's.
        """
        try:
            await self._asking.ask("GET", f"/observation?id={self._id}&env_idx={self._id}", acting=True)
        except Refused as refused:
            if refused.status not in (404, 405):
                raise InfrastructureError(f"{self._asking.url}: {said}; and then {refused}") from None


def _body(document: Any, path: str) -> _Body:
    """What a route takes as JSON; nothing where that is not said."""
    try:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = content["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return _Body(tuple(schema.get("properties", ())), tuple(schema.get("required", ())))
    except (KeyError, TypeError, AttributeError):
        return _Body()


def _text(said: Any) -> str:
    """What is shown of an answer, in front of it what is to be done where the server says it."""
    if isinstance(said, Sequence) and not isinstance(said, str):  # a text, and what goes with it
        said = said[0] if said else ""
    if not isinstance(said, Mapping):
        return plain(str(said))
    shown = said.get("observation", said.get("state", ""))
    goal = said.get("task_description") or said.get("object")
    return plain(f"{goal}\n{shown}" if isinstance(goal, str) and goal else str(shown))
