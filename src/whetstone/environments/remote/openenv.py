"""A client of OpenEnv's environment servers, over the socket that keeps a session.

Their plain HTTP routes make a new environment for each request, so state lives only on the socket. What an action is
the server's schema says: an object of the environment's own fields, one of which a command is put into; or the call of
a tool, and then the server's tools are those on offer.

Easy to get wrong: an error behind an action is mostly the agent's, and never voids an episode where it is
(`openenv_session.py` tells).

Source: OpenEnv's WebSocket messages: `reset`, `step`, `state`, `mcp`, `close` → `observation`, `error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, tool_result, user
from whetstone.environments.commands import Actions, answered, arguments_of, command_of, tool_of, why_none
from whetstone.environments.dependencies import package
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import Asking, Refused, UnknownThere, flag_of, reward_of
from whetstone.environments.remote.openenv_session import OpenEnvSession
from whetstone.errors import EpisodeError, InfrastructureError, did_you_mean
from whetstone.tools.plain_text import plain
from whetstone.trajectory import CallRecord, Task

_OUTCOMES = {"invalid_args": "invalid_arguments", "tool_not_found": "unknown_tool", "timeout": "timeout"}


class OpenEnv:
    """One session of a server. Ends: as the environment does; where it has tools, with an action without a call, too.

    Args:
        url: URL of the server, `http://…` or `ws://…`.
        field: The field of an action that a command is put into; empty: the one the server's schema requires.
        observation_field: Field of an observation that the policy reads; empty: the whole observation, as JSON.
        actions: Commands as a call of `act`, or as text. A text that is a JSON object is the action.
        full_text: Use the full text of a message as the command, as for code; false: its last line. In both cases the
            text between the last `<action>` and `</action>` has priority.
        success_at: Minimum reward of a success, at any turn.
        seconds: How long one answer may take, and how long a server that is full is waited for.
    """

    needs = (package("websockets", "openenv"),)

    def __init__(
        self,
        *,
        url: str,
        field: str = "",
        observation_field: str = "",
        actions: Actions = "text",
        full_text: bool = True,
        success_at: float = 1.0,
        seconds: float = 60.0,
    ) -> None:
        scheme, _, rest = url.rstrip("/").partition("://")
        secure = scheme in ("https", "wss")
        self._session = OpenEnvSession(f"{'wss' if secure else 'ws'}://{rest}/ws", seconds=seconds)
        self.url = self._session.url
        self._asking = Asking(f"{'https' if secure else 'http'}://{rest}", seconds=seconds)
        self.field, self.observation_field, self.actions, self.full_text = field, observation_field, actions, full_text
        self.success_at = success_at
        self.specs: tuple[ToolSpec, ...] = (tool_of(()),) if actions == "call" else ()
        self._fields: dict[str, Mapping[str, Any]] | None = None
        self._required: tuple[str, ...] = ()
        self._tools: dict[str, ToolSpec] = {}
        self._reward, self._reached, self._over = 0.0, False, True

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin; what else the environment's reset takes is under `reset` in the task's private data."""
        if self._fields is None:
            await self._read_schema()
        said = await self._session.begin({"seed": seed % 2**31, **task.private.get("reset", {})})
        self._reward, self._reached, self._over = 0.0, False, flag_of(said.get("done"), self.url)
        self._tools = await self._listed() if self._calls_tools else {}
        shown = self._written(said)
        text = f"{task.prompt}\n{shown}" if task.prompt and shown else task.prompt or shown
        return Observation((user(text),), tuple(self._tools.values()) or self.specs)

    async def step(self, action: Message) -> StepResult:
        """One action."""
        if self._over or not self._session.under_way:
            raise EpisodeError("a step outside an episode; reset begins another")
        if self._tools:
            return await self._called(action)
        command = command_of(action, self.actions, whole=self.full_text, one_line=False)
        sent = None if command is None else self._action(command)
        if not isinstance(sent, Mapping):
            return _not_taken(action, sent or self._why_none(action))
        try:
            said = await self._stepped(sent)
        except Refused as refused:
            answer, calls = answered(action, f"error: {refused}", understood=False)
            return StepResult(Observation(answer), terminated=self._over, calls=calls)
        answer, calls = answered(action, self._written(said))
        return StepResult(Observation(answer), reward=said.get("reward"), terminated=self._over, calls=calls)

    async def verdict(self) -> Mapping[str, Any]:
        """Whether a reward was enough, and the last one, from 0 to 1."""
        score = 1.0 if self._reached else max(0.0, min(1.0, self._reward))
        return {"success": self._reached, "score": score}

    async def close(self) -> None:
        """Close the session."""
        self._over = True
        try:
            await self._session.end()
        finally:
            await self._asking.close()

    # ------------------------------------------------------------ what the server takes

    async def _read_schema(self) -> None:
        """The fields of an action; none where the server has no `/schema`."""
        try:
            said = await self._asking.ask("GET", "/schema")
        except UnknownThere:  # a server of before it was there
            said = {}
        action = said.get("action") if isinstance(said, Mapping) else None
        fields = action.get("properties") if isinstance(action, Mapping) else None
        if fields is not None and not isinstance(fields, Mapping):
            raise InfrastructureError(f"{self._asking.url}/schema: its `action` is no schema: {str(action)[:80]}")
        self._fields = {name: field for name, field in (fields or {}).items() if isinstance(field, Mapping)}
        required = action.get("required") if isinstance(action, Mapping) else None
        self._required = tuple(name for name in required if name in self._fields) if isinstance(required, list) else ()

    @property
    def _calls_tools(self) -> bool:
        """Whether an action is the call of a tool: of that type, or of none."""
        fields = dict(self._fields or {})
        fields.pop("metadata", None)
        return self._fields != {} and (not fields or fields.get("type", {}).get("const") == "call_tool")

    async def _listed(self) -> dict[str, ToolSpec]:
        said = await self._session.ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        result = said.get("result")
        tools = result.get("tools") if isinstance(result, Mapping) else None
        if not isinstance(tools, list) or not all(isinstance(tool, Mapping) and tool.get("name") for tool in tools):
            raise InfrastructureError(f"{self.url}: its tools cannot be read: {str(said.get('error') or said)[:120]}")
        return {spec.name: spec for spec in map(_spec, tools)}

    def _action(self, command: str) -> Mapping[str, Any] | str:
        """What a command is to the server; or why it is nothing."""
        given = arguments_of(command)
        if given:
            return given
        field = self.field or (self._required[0] if len(self._required) == 1 else "")
        if not field and self._required:
            return f"give the action as a JSON object with {', '.join(self._required)}"
        return {field or "message": command}

    def _why_none(self, action: Message) -> str:
        if action.malformed:
            return plain("; ".join(action.malformed))
        if len(action.tool_calls) > 1:
            return f"{len(action.tool_calls)} calls in one turn, 1 allowed; none was made"
        return why_none(action, self.actions, whole=self.full_text)

    # ------------------------------------------------------------ what is done there

    async def _called(self, action: Message) -> StepResult:
        """The calls of an action, one behind another; without any, the action is the answer."""
        if action.malformed:
            return _not_taken(action, self._why_none(action))
        if not action.tool_calls:
            self._over = True
            return StepResult(Observation(()), terminated=True)
        answers, records, rewards = [], [], []
        for call in action.tool_calls:
            text, outcome, reward = await self._tool_called(call)
            answers.append(tool_result(plain(text), call_id=call.id or None))
            records.append(CallRecord(plain(call.name[:200]), outcome, 0.0))
            rewards += [] if reward is None else [reward]
        reward = sum(rewards) if rewards else None
        return StepResult(Observation(tuple(answers)), reward=reward, terminated=self._over, calls=tuple(records))

    async def _tool_called(self, call: ToolCall) -> tuple[str, str, float | None]:
        """(what comes back, how it went, what it was worth)"""
        if self._over:
            return "error: the episode was over, the call was not made", "too_many_calls", None
        if call.name not in self._tools:
            name = plain(call.name[:100])
            return f'error: there is no tool "{name}"{did_you_mean(name, self._tools)}', "unknown_tool", None
        given = arguments_of(call.arguments)
        if given is None:
            return "error: the arguments are no JSON object", "invalid_arguments", None
        try:
            said = await self._stepped({"type": "call_tool", "tool_name": call.name, "arguments": given})
        except Refused as refused:
            return f"error: {refused}", "tool_error", None
        text, outcome = _tool_said(said.get("observation"))
        if outcome == "transport_error":
            raise InfrastructureError(f"{self.url}: {text[:200]}")
        return text, outcome, said.get("reward")

    async def _stepped(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        """What an action led to; its reward is a number or none.

        Raises:
            Refused: The server would not, and is still there.
        """
        try:
            said = await self._session.ask("step", action)
        except Refused:
            self._over = not self._session.under_way
            raise
        self._over = flag_of(said.get("done"), self.url)
        reward = said.get("reward")
        if reward is not None:
            self._reward = reward_of(reward, self.url)
            self._reached = self._reached or self._reward >= self.success_at
        return {**said, "reward": None if reward is None else self._reward}

    def _written(self, said: Mapping[str, Any]) -> str:
        observation = said.get("observation") or ""  # an empty one shows nothing
        if self.observation_field and isinstance(observation, Mapping):
            return plain(str(observation.get(self.observation_field, "")))
        return plain(observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False))


def _not_taken(action: Message, why: str) -> StepResult:
    """An action that says nothing the server could be asked."""
    if action.malformed:
        told = tuple(tool_result(f"error: {plain(what)}") for what in action.malformed)
        return StepResult(Observation(told), calls=tuple(CallRecord("", "malformed_call", 0.0) for _ in told))
    if not action.tool_calls:
        return StepResult(Observation((user(f"{why[0].upper()}{why[1:]}."),)))
    calls = tuple(CallRecord(plain(call.name[:200]), "invalid_arguments", 0.0) for call in action.tool_calls)
    return StepResult(
        Observation((tool_result(f"error: {why}", call_id=action.tool_calls[0].id or None),)), calls=calls
    )


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    parameters = tool.get("input_schema") or tool.get("inputSchema")
    return ToolSpec(
        plain(str(tool["name"])),
        plain(str(tool.get("description") or "")),
        parameters if isinstance(parameters, Mapping) else {"type": "object", "properties": {}},
    )


def _tool_said(observation: Any) -> tuple[str, str]:
    """(a tool's answer as text, how the call went)"""
    if not isinstance(observation, Mapping):
        return str(observation), "ok"
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, Mapping):
        kind = str(error.get("error_type"))
        outcome = kind if kind == "transport_error" else _OUTCOMES.get(kind, "tool_error")
        return f"error: {error.get('message')}", outcome
    if not isinstance(result, Mapping) or "content" not in result:
        value = observation if result is None else result
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), "ok"
    parts = result["content"] if isinstance(result["content"], list) else []
    text = "\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)
    if not text and result.get("data") is not None:
        text = json.dumps(result["data"], ensure_ascii=False)
    return text, "tool_error" if result.get("is_error") else "ok"
