"""A client of AgentGym's environment servers: `/create`, `/reset`, `/step`, `/close`, text in and out.

Easy to get wrong, all seen in servers of this kind: an error comes with status 200; the id a `create` gives may be
another client's; nobody closes. An id that is in use here already is refused, and `close` is asked for on every path.
An error behind an action may be the agent's (`Invalid action`) or the server's (it has lost the environment): the
environment is asked whether it is still there, and where it is, the agent reads the error.

Source: AgentGym, arXiv:2406.04151, and its servers' interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, user
from whetstone.environments.commands import Actions, answered, command_of, tool_of
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import Asking, Refused, reward_of
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.tools.plain_text import plain
from whetstone.trajectory import Task

_in_use: set[tuple[str, str]] = set()


class AgentGym:
    """One environment of a server; the task's `data_idx` says which of its items.

    Args:
        url: Where the server is.
        actions: As of a game: commands as a call of `act`, or as text.
        success_at: The reward from which the episode is a success, whatever came behind it.
        seconds: How long one answer may take.
    """

    def __init__(self, *, url: str, actions: Actions = "text", success_at: float = 1.0, seconds: float = 60.0) -> None:
        self._asking = Asking(url, seconds=seconds)
        self.actions, self.success_at = actions, success_at
        self.specs = (tool_of(()),) if actions == "call" else ()
        self._id: Any = None
        self._reward, self._reached, self._over = 0.0, False, False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Create an environment, where there is none, and reset it."""
        if self._id is None:
            created = await self._asking.ask("POST", "/create", {})
            id = created.get("id", created.get("env_idx")) if isinstance(created, Mapping) else created
            if not isinstance(id, str | int):
                raise InfrastructureError(f"{self._asking.url}/create gave no id: {str(created)[:80]}")
            if (self._asking.url, str(id)) in _in_use:
                raise InfrastructureError(f"{self._asking.url} gave the id {id} to two episodes")
            _in_use.add((self._asking.url, str(id)))
            self._id = id
        self._reward, self._reached, self._over = 0.0, False, False
        body = {**self._named, "data_idx": task.private.get("data_idx", 0)}
        said = await self._asking.ask("POST", "/reset", body)
        return Observation((user(_text(said)),), self.specs)

    async def step(self, action: Message) -> StepResult:
        """One action."""
        if self._id is None or self._over:
            raise EpisodeError("a step outside an episode; reset begins another")
        command = command_of(action, self.actions, one_line=False)
        if command is None:
            return StepResult(Observation((user("Give one action."),)))
        try:
            said = await self._asking.ask("POST", "/step", {**self._named, "action": command}, acting=True)
        except Refused as refused:
            await self._still_there(str(refused))
            answer, calls = answered(action, f"error: {refused}", understood=False)
            return StepResult(Observation(answer), calls=calls)
        if not isinstance(said, Mapping):
            raise InfrastructureError(f"{self._asking.url}/step: its answer is no object: {str(said)[:80]!r}")
        self._reward, self._over = reward_of(said.get("reward"), self._asking.url), bool(said.get("done"))
        self._reached = self._reached or self._reward >= self.success_at
        answer, calls = answered(action, _text(said))
        return StepResult(Observation(answer), reward=self._reward, terminated=self._over, calls=calls)

    async def verdict(self) -> Mapping[str, Any]:
        """Whether a reward was enough, and the last one, from 0 to 1."""
        score = 1.0 if self._reached else max(0.0, min(1.0, self._reward))
        return {"success": self._reached, "score": score}

    async def close(self) -> None:
        """Close it there."""
        id = self._id
        try:
            if id is not None:
                _in_use.discard((self._asking.url, str(id)))
                with contextlib.suppress(InfrastructureError, EpisodeError, TaskError):
                    await self._asking.ask("POST", "/close", self._named)
        finally:
            self._id = None
            await self._asking.close()

    @property
    def _named(self) -> dict[str, Any]:
        """The environment as its server knows it; servers differ in the name of the field."""
        return {"id": self._id, "env_idx": self._id}

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


def _text(said: Any) -> str:
    return plain(str(said.get("observation", said.get("state", ""))) if isinstance(said, Mapping) else str(said))
