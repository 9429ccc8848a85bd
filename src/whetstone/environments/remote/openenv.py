"""A client of OpenEnv's environment servers, over the socket that keeps a session.

Their plain HTTP routes make a new environment for each request, so state lives only on the socket. An action is a JSON
object of the environment's own fields; a command becomes `{field: command}`.

Source: OpenEnv's WebSocket messages: `reset`, `step`, `close` → `observation`, `error`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, tool_result, user
from whetstone.environments.game_environment import Actions, command_of, tool_of
from whetstone.environments.needs import check_needs, package
from whetstone.environments.protocol import Observation, StepResult
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.trajectory import Task


class OpenEnv:
    """One session of a server.

    Args:
        url: Where it is, `http://…` or `ws://…`.
        field: The field of an action that a command is put into.
        shown: The field of an observation that is shown; empty: all of it, as JSON.
        actions: As of a game: commands as a call of `act`, or as text. A text that is a JSON object is the action.
        success_at: The last reward from which the episode is a success.
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
        self._reward, self._over = 0.0, True

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin; what else the environment's reset takes is under `reset` in the task's private data."""
        if self._socket is None:
            from websockets.asyncio.client import connect

            try:
                self._socket = await connect(self.url, open_timeout=self.seconds, max_size=64 << 20)
            except (OSError, TimeoutError, ValueError) as error:
                raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None
        said = await self._asked("reset", {"seed": seed % 2**31, **task.private.get("reset", {})})
        self._reward, self._over = 0.0, bool(said.get("done"))
        shown = self._written(said)
        text = f"{task.prompt}\n{shown}" if task.prompt and shown else task.prompt or shown
        return Observation((user(text),), self.specs)

    async def step(self, action: Message) -> StepResult:
        """One action."""
        if self._over:
            raise EpisodeError("a step outside an episode; reset begins another")
        command = command_of(action, self.actions)
        if command is None:
            return StepResult(Observation((user("Give one action."),)))
        said = await self._asked("step", self._action(command))
        reward, self._over = said.get("reward"), bool(said.get("done"))
        self._reward = float(reward or 0.0)
        call = action.tool_calls[0] if action.tool_calls else None
        shown = self._written(said)
        message = user(shown) if call is None else tool_result(shown, call_id=call.id or None)
        value = None if reward is None else float(reward)
        return StepResult(Observation((message,)), reward=value, terminated=self._over)

    async def verdict(self) -> Mapping[str, Any]:
        """The last reward, and whether it is enough."""
        return {"success": self._reward >= self.success_at, "score": max(0.0, min(1.0, self._reward))}

    async def close(self) -> None:
        """Close the session."""
        socket, self._socket, self._over = self._socket, None, True
        if socket is not None:
            with contextlib.suppress(Exception):  # whatever is left of it
                await socket.send(json.dumps({"type": "close"}))
            await socket.close()

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            await self._socket.send(json.dumps({"type": kind, "data": data}))
            async with asyncio.timeout(self.seconds):
                answer = json.loads(await self._socket.recv())
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from None
        except Exception as error:
            raise InfrastructureError(f"{self.url}: the connection is gone: {error}") from None
        if answer.get("type") == "error":
            said = answer.get("data", {})
            raise InfrastructureError(f"{self.url}: {said.get('code')}: {said.get('message')}")
        data = answer.get("data")
        return data if isinstance(data, Mapping) else {}

    def _action(self, command: str) -> Mapping[str, Any]:
        with contextlib.suppress(ValueError):
            given = json.loads(command)
            if isinstance(given, dict):
                return given
        return {self.field: command}

    def _written(self, said: Mapping[str, Any]) -> str:
        observation = said.get("observation", {})
        if self.shown and isinstance(observation, Mapping):
            return str(observation.get(self.shown, ""))
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
