"""A client of AgentGym's environment servers: `/create`, `/reset`, `/step`, `/close`, text in and out.

Easy to get wrong, all seen in servers of this kind: an error comes with status 200; the id a `create` gives may be
another client's; nobody closes. An error ends the episode as invalid, an id that is in use here already is refused, and
`close` is asked for on every path.

Source: AgentGym, arXiv:2406.04151, and its servers' interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, tool_result, user
from whetstone.environments.game_environment import Actions, command_of, tool_of
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.asking import Asking
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.trajectory import Task

_in_use: set[tuple[str, str]] = set()


class AgentGym:
    """One environment of a server; the task's `data_idx` says which of its items.

    Args:
        url: Where the server is.
        actions: As of a game: commands as a call of `act`, or as text.
        success_at: The last reward from which the episode is a success.
        seconds: How long one answer may take.
    """

    def __init__(self, *, url: str, actions: Actions = "text", success_at: float = 1.0, seconds: float = 60.0) -> None:
        self._asking = Asking(url, seconds=seconds)
        self.actions, self.success_at = actions, success_at
        self.specs = (tool_of(()),) if actions == "call" else ()
        self._id: Any = None
        self._reward, self._over = 0.0, False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Create an environment, where there is none, and reset it."""
        if self._id is None:
            created = await self._asking.ask("POST", "/create", {})
            id = created.get("id", created.get("env_idx")) if isinstance(created, Mapping) else created
            if id is None:
                raise InfrastructureError(f"{self._asking.url}/create gave no id: {created}")
            if (self._asking.url, str(id)) in _in_use:
                raise InfrastructureError(f"{self._asking.url} gave the id {id} to two episodes")
            _in_use.add((self._asking.url, str(id)))
            self._id = id
        self._reward, self._over = 0.0, False
        body = {"id": self._id, "env_idx": self._id, "data_idx": task.private.get("data_idx", 0)}
        said = await self._asking.ask("POST", "/reset", body)
        return Observation((user(_text(said)),), self.specs)

    async def step(self, action: Message) -> StepResult:
        """One action."""
        if self._id is None or self._over:
            raise EpisodeError("a step outside an episode; reset begins another")
        command = command_of(action, self.actions)
        if command is None:
            return StepResult(Observation((user("Give one action."),)))
        said = await self._asking.ask("POST", "/step", {"id": self._id, "env_idx": self._id, "action": command})
        self._reward, self._over = float(said.get("reward", 0.0)), bool(said.get("done"))
        call = action.tool_calls[0] if action.tool_calls else None
        message = user(_text(said)) if call is None else tool_result(_text(said), call_id=call.id or None)
        return StepResult(Observation((message,)), reward=self._reward, terminated=self._over)

    async def verdict(self) -> Mapping[str, Any]:
        """The last reward, and whether it is enough."""
        return {"success": self._reward >= self.success_at, "score": max(0.0, min(1.0, self._reward))}

    async def close(self) -> None:
        """Close it there."""
        id, self._id = self._id, None
        try:
            if id is not None:
                _in_use.discard((self._asking.url, str(id)))
                with contextlib.suppress(InfrastructureError, EpisodeError):
                    await self._asking.ask("POST", "/close", {"id": id, "env_idx": id})
        finally:
            await self._asking.close()


def _text(said: Any) -> str:
    return str(said.get("observation", said.get("state", ""))) if isinstance(said, Mapping) else str(said)
