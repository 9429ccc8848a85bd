"""A client of OpenEnv's environment servers, over the socket that keeps a session.

Their plain HTTP routes make a new environment for each request, so state lives only on the socket. An action is a JSON
object of the environment's own fields; a command becomes `{field: command}`.

Easy to get wrong: an action the environment cannot read comes back as `VALIDATION_ERROR`, which is the agent's to mend;
any other error is the server's.

Source: OpenEnv's WebSocket messages: `reset`, `step`, `close` → `observation`, `error`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, user
from whetstone.environments.commands import Actions, answered, arguments_of, command_of, tool_of
from whetstone.environments.dependencies import check_needs, package
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import Refused, reward_of
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.tools.plain_text import plain
from whetstone.trajectory import Task
from whetstone.trajectory_json import writable

_THE_AGENTS = ("VALIDATION_ERROR", "INVALID_JSON")


class OpenEnv:
    """One session of a server.

    Args:
        url: Where it is, `http://…` or `ws://…`.
        field: The field of an action that a command is put into.
        shown: The field of an observation that is shown; empty: all of it, as JSON.
        actions: As of a game: commands as a call of `act`, or as text. A text that is a JSON object is the action.
        success_at: The reward from which the episode is a success, whatever came behind it.
        seconds: How long one answer may take.

    Raises:
        RecipeError: The package `websockets` is not installed.
    """

    def __init__(
        self,
        *,
        url: str,
        field: str = "message",
        shown: str = "",
        actions: Actions = "text",
        success_at: float = 1.0,
        seconds: float = 60.0,
    ) -> None:
        check_needs("openenv", (package("websockets", "openenv"),))
        scheme, _, rest = url.rstrip("/").partition("://")
        self.url = f"{'wss' if scheme in ('https', 'wss') else 'ws'}://{rest}/ws"
        self.field, self.shown, self.actions = field, shown, actions
        self.success_at, self.seconds = success_at, seconds
        self.specs = (tool_of(()),) if actions == "call" else ()
        self._socket: Any = None
        self._reward, self._reached, self._over = 0.0, False, True

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin; what else the environment's reset takes is under `reset` in the task's private data."""
        if self._socket is None:
            from websockets.asyncio.client import connect

            try:
                self._socket = await connect(self.url, open_timeout=self.seconds, max_size=64 << 20)
            except (OSError, TimeoutError, ValueError) as error:
                raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None
        said = await self._asked("reset", {"seed": seed % 2**31, **task.private.get("reset", {})})
        self._reward, self._reached, self._over = 0.0, False, bool(said.get("done"))
        shown = self._written(said)
        text = f"{task.prompt}\n{shown}" if task.prompt and shown else task.prompt or shown
        return Observation((user(text),), self.specs)

    async def step(self, action: Message) -> StepResult:
        """One action."""
        if self._over:
            raise EpisodeError("a step outside an episode; reset begins another")
        command = command_of(action, self.actions, one_line=False)
        if command is None:
            return StepResult(Observation((user("Give one action."),)))
        try:
            said = await self._asked("step", arguments_of(command) or {self.field: command})
        except Refused as refused:
            answer, calls = answered(action, f"error: {refused}", understood=False)
            return StepResult(Observation(answer), calls=calls)
        reward, self._over = said.get("reward"), bool(said.get("done"))
        self._reward = reward_of(reward, self.url)
        self._reached = self._reached or self._reward >= self.success_at
        value = None if reward is None else self._reward
        answer, calls = answered(action, self._written(said))
        return StepResult(Observation(answer), reward=value, terminated=self._over, calls=calls)

    async def verdict(self) -> Mapping[str, Any]:
        """Whether a reward was enough, and the last one, from 0 to 1."""
        score = 1.0 if self._reached else max(0.0, min(1.0, self._reward))
        return {"success": self._reached, "score": score}

    async def close(self) -> None:
        """Close the session."""
        socket, self._socket, self._over = self._socket, None, True
        if socket is not None:
            with contextlib.suppress(Exception):  # whatever is left of it
                await socket.send(json.dumps({"type": "close"}))
            await socket.close()

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            await self._socket.send(json.dumps({"type": kind, "data": writable(data)}))
            async with asyncio.timeout(self.seconds):
                answer = json.loads(await self._socket.recv())
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None
        except Exception as error:
            raise InfrastructureError(f"{self.url}: the connection is gone: {error}") from None
        if answer.get("type") == "error":
            said = answer.get("data", {})
            if kind == "step" and said.get("code") in _THE_AGENTS:
                raise Refused(str(said.get("message"))[:2000], 422)
            raise InfrastructureError(f"{self.url}: {said.get('code')}: {said.get('message')}")
        data = answer.get("data")
        return data if isinstance(data, Mapping) else {}

    def _written(self, said: Mapping[str, Any]) -> str:
        observation = said.get("observation", {})
        if self.shown and isinstance(observation, Mapping):
            return plain(str(observation.get(self.shown, "")))
        return plain(observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False))
