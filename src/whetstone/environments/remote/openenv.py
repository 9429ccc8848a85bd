"""Client of OpenEnv's environment servers, over the WebSocket that holds a session.

Their HTTP routes create a new environment for each request, so only the socket has state. The server's schema defines
an action: either an object with the environment's fields, one of which receives the command, or a tool call; in the
second case the server's tools are available.

Note:
    An error after an action is usually the agent's, and then never voids the episode (see `openenv_session.py`).

Source: OpenEnv's WebSocket messages: `reset`, `step`, `state`, `mcp`, `close` → `observation`, `error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, tool_result, user
from whetstone.environments.dependencies import require_package
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import (
    JsonHttpClient,
    NotFoundError,
    RequestRefusedError,
    parse_flag,
    parse_reward,
)
from whetstone.environments.remote.openenv_session import OpenEnvSession
from whetstone.environments.text_actions import (
    Actions,
    command_result,
    command_tool,
    describe_parse_failure,
    parse_command,
    parse_or_none,
)
from whetstone.errors import EpisodeError, InfrastructureError, did_you_mean
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import CallRecord, Task

_OUTCOMES = {"invalid_args": "invalid_arguments", "tool_not_found": "unknown_tool", "timeout": "timeout"}
"""Outcome of a call by the error type of OpenEnv; others are `tool_error`."""


class OpenEnv:
    """Environment that runs on a server of OpenEnv.

    Ends: as the environment does; if it has tools, also with an action without a call.

    Args:
        url: URL of the server, `http://…` or `ws://…`.
        field: Field of an action that receives the command; empty: the one that the server's schema requires, or the
            first text field if all are optional. If the field is no text, the command is parsed as JSON.
        observation_field: Field of an observation that the policy reads; empty: the whole observation, as JSON.
        actions: Commands as a call of `act`, or as text. A text that is a JSON object is the action.
        full_text: Use the full text of a message as the command, as for code; false: its last line. In both cases the
            text between the last `<action>` and `</action>` has priority.
        success_at: Minimum reward of a success, at any turn.
        seconds: Timeout of one answer, and of the wait for a server that is full, in seconds.
    """

    needs = (require_package("websockets", "openenv"),)

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
        self._asking = JsonHttpClient(f"{'https' if secure else 'http'}://{rest}", seconds=seconds)
        self.field, self.observation_field, self.actions, self.full_text = field, observation_field, actions, full_text
        self.success_at = success_at
        self.specs: tuple[ToolSpec, ...] = (command_tool(()),) if actions == "call" else ()
        self._fields: dict[str, Mapping[str, Any]] | None = None
        self._required: tuple[str, ...] = ()
        self._tools: dict[str, ToolSpec] = {}
        self._reward, self._reached, self._over = 0.0, False, True

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Start an episode on the server and return its first observation and tools.

        The fields under `reset` in the task's private data are sent with the request.

        Raises:
            InfrastructureError: If the server is unavailable or stays full.
        """
        if self._fields is None:
            await self._read_schema()
        answer = await self._session.start_episode({"seed": seed % 2**31, **task.private.get("reset", {})})
        self._reward, self._reached, self._over = 0.0, False, parse_flag(answer.get("done"), self.url)
        self._tools = await self._list_tools() if self._calls_tools else {}
        observation = self._observation_text(answer)
        text = f"{task.prompt}\n{observation}" if task.prompt and observation else task.prompt or observation
        return Observation((user(text),), tuple(self._tools.values()) or self.specs)

    async def step(self, action: Message) -> StepResult:
        """Execute an action on the server: a command, or tool calls if it has tools.

        Raises:
            EpisodeError: If no episode is in progress.
            InfrastructureError: If the server failed.
        """
        if self._over or not self._session.is_running:
            raise EpisodeError("step was called outside an episode; call reset first")
        if self._tools:
            return await self._execute_calls(action)
        command = parse_command(action, self.actions, multiline=self.full_text, one_line=False)
        sent = None if command is None else self._action(command)
        if not isinstance(sent, Mapping):
            return _refuse_action(action, sent or self._describe_failure(action))
        try:
            result = await self._send_action(sent)
        except RequestRefusedError as refused:
            answer, calls = command_result(action, f"error: {refused}", understood=False)
            return StepResult(Observation(answer), terminated=self._over, calls=calls)
        answer, calls = command_result(action, self._observation_text(result))
        return StepResult(Observation(answer), reward=result.get("reward"), terminated=self._over, calls=calls)

    async def verdict(self) -> Mapping[str, Any]:
        """Return whether the required reward was reached, and the clipped last reward."""
        score = 1.0 if self._reached else max(0.0, min(1.0, self._reward))
        return {"success": self._reached, "score": score}

    async def close(self) -> None:
        """Close the WebSocket session and the connection to the server."""
        self._over = True
        try:
            await self._session.close_connection()
        finally:
            await self._asking.close()

    # ------------------------------------------------------------ actions of the server

    async def _read_schema(self) -> None:
        """Read the fields of an action from the server; none if it has no route `/schema`.

        Raises:
            InfrastructureError: If the schema of an action is invalid.
        """
        try:
            schema = await self._asking.send_request("GET", "/schema")
        except NotFoundError:  # an older server
            schema = {}
        action = schema.get("action") if isinstance(schema, Mapping) else None
        fields = action.get("properties") if isinstance(action, Mapping) else None
        if fields is not None and not isinstance(fields, Mapping):
            raise InfrastructureError(f"{self._asking.url}/schema: `action` is not a schema: {str(action)[:80]}")
        self._fields = {name: field for name, field in (fields or {}).items() if isinstance(field, Mapping)}
        required = action.get("required") if isinstance(action, Mapping) else None
        self._required = tuple(name for name in required if name in self._fields) if isinstance(required, list) else ()

    @property
    def _calls_tools(self) -> bool:
        """Return whether the server's actions are tool calls."""
        fields = dict(self._fields or {})
        fields.pop("metadata", None)
        return self._fields != {} and (not fields or fields.get("type", {}).get("const") == "call_tool")

    async def _list_tools(self) -> dict[str, ToolSpec]:
        """Return the server's tools by name.

        Raises:
            InfrastructureError: If the list is invalid.
        """
        answer = await self._session.send_message(
            "mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        )
        result = answer.get("result")
        tools = result.get("tools") if isinstance(result, Mapping) else None
        if not isinstance(tools, list) or not all(isinstance(tool, Mapping) and tool.get("name") for tool in tools):
            raise InfrastructureError(
                f"{self.url}: the list of tools is invalid: {str(answer.get('error') or answer)[:120]}"
            )
        return {spec.name: spec for spec in map(_spec, tools)}

    def _action(self, command: str) -> Mapping[str, Any] | str:
        """Return the server's action for a command, or the reason why there is none."""
        fields = parse_or_none(command)
        if fields:
            return fields
        field = self.field or self._default_field()
        if not field:
            return f"give the action as a JSON object with {', '.join(self._required)}"
        schema = (self._fields or {}).get(field, {})
        return {field: command if _accepts_text(schema) else _parse_value(command)}

    def _default_field(self) -> str:
        """Return the field of an action that receives the command; empty if the schema requires several."""
        if self._required:
            return self._required[0] if len(self._required) == 1 else ""
        optional = {name: schema for name, schema in (self._fields or {}).items() if name != "metadata"}
        if "message" in optional or not optional:
            return "message"
        return next((name for name, schema in optional.items() if _accepts_text(schema)), next(iter(optional)))

    def _describe_failure(self, action: Message) -> str:
        """Return the reason why an action of the model cannot be sent; the model reads it."""
        if action.malformed:
            return sanitize_text("; ".join(action.malformed))
        if len(action.tool_calls) > 1:
            return f"{len(action.tool_calls)} calls in one turn, 1 allowed; none was made"
        return describe_parse_failure(action, self.actions, multiline=self.full_text)

    # ------------------------------------------------------------ execution

    async def _execute_calls(self, action: Message) -> StepResult:
        """Execute the calls of an action in order.

        An action without calls ends the episode.
        """
        if action.malformed:
            return _refuse_action(action, self._describe_failure(action))
        if not action.tool_calls:
            self._over = True
            return StepResult(Observation(()), terminated=True)
        answers, records, rewards = [], [], []
        for call in action.tool_calls:
            text, outcome, reward = await self._execute_call(call)
            answers.append(tool_result(sanitize_text(text), call_id=call.id or None))
            records.append(CallRecord(sanitize_text(call.name[:200]), outcome, 0.0))
            rewards += [] if reward is None else [reward]
        reward = sum(rewards) if rewards else None
        return StepResult(Observation(tuple(answers)), reward=reward, terminated=self._over, calls=tuple(records))

    async def _execute_call(self, call: ToolCall) -> tuple[str, str, float | None]:
        """Return the text, the outcome and the reward of a call.

        Raises:
            InfrastructureError: If the server failed.
        """
        if self._over:
            return "error: the episode was over, the call was not made", "too_many_calls", None
        if call.name not in self._tools:
            name = sanitize_text(call.name[:100])
            return f'error: there is no tool "{name}"{did_you_mean(name, self._tools)}', "unknown_tool", None
        arguments = parse_or_none(call.arguments)
        if arguments is None:
            return "error: the arguments are no JSON object", "invalid_arguments", None
        try:
            answer = await self._send_action({"type": "call_tool", "tool_name": call.name, "arguments": arguments})
        except RequestRefusedError as refused:
            return f"error: {refused}", "tool_error", None
        text, outcome = _parse_tool_result(answer.get("observation"))
        if outcome == "transport_error":
            raise InfrastructureError(f"{self.url}: {text[:200]}")
        return text, outcome, answer.get("reward")

    async def _send_action(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send an action; return the server's result with a reward of a number or None.

        Raises:
            RequestRefusedError: If the server refuses the action and is still available.
        """
        try:
            answer = await self._session.send_message("step", action)
        except RequestRefusedError:
            self._over = not self._session.is_running
            raise
        self._over = parse_flag(answer.get("done"), self.url)
        reward = answer.get("reward")
        if reward is not None:
            self._reward = parse_reward(reward, self.url)
            self._reached = self._reached or self._reward >= self.success_at
        return {**answer, "reward": None if reward is None else self._reward}

    def _observation_text(self, answer: Mapping[str, Any]) -> str:
        """Return the observation in a result of the server as text.

        The text is the field `observation_field`, or the whole observation as JSON.
        """
        observation = answer.get("observation") or ""  # an empty one shows nothing
        if self.observation_field and isinstance(observation, Mapping):
            return sanitize_text(str(observation.get(self.observation_field, "")))
        return sanitize_text(
            observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
        )


def _refuse_action(action: Message, why: str) -> StepResult:
    """Return the result of an action that cannot be sent to the server."""
    if action.malformed:
        messages = tuple(tool_result(f"error: {sanitize_text(what)}") for what in action.malformed)
        return StepResult(Observation(messages), calls=tuple(CallRecord("", "malformed_call", 0.0) for _ in messages))
    if not action.tool_calls:
        return StepResult(Observation((user(f"{why[0].upper()}{why[1:]}."),)))
    calls = tuple(CallRecord(sanitize_text(call.name[:200]), "invalid_arguments", 0.0) for call in action.tool_calls)
    return StepResult(
        Observation((tool_result(f"error: {why}", call_id=action.tool_calls[0].id or None),)), calls=calls
    )


def _accepts_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a field of this JSON schema can be a text; a schema without a type can."""
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        return any(isinstance(one, Mapping) and _accepts_text(one) for one in alternatives)
    kinds = schema.get("type", "string")
    return "string" in (kinds if isinstance(kinds, list) else [kinds])


def _parse_value(command: str) -> Any:
    """Return the JSON value of a command; a command that is no JSON is returned unchanged."""
    try:
        return json.loads(command)
    except (ValueError, RecursionError):
        return command


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    """Return the spec of a tool that the server lists."""
    parameters = tool.get("input_schema") or tool.get("inputSchema")
    return ToolSpec(
        sanitize_text(str(tool["name"])),
        sanitize_text(str(tool.get("description") or "")),
        parameters if isinstance(parameters, Mapping) else {"type": "object", "properties": {}},
    )


def _parse_tool_result(observation: Any) -> tuple[str, str]:
    """Return a tool's result as text, and the outcome of the call."""
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
