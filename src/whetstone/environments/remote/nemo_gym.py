"""A client of NeMo Gym's resources servers: a session, a route a tool, and `/verify` at the end.

The tools of an episode are in the task: `tools` in its private data, as OpenAI declares functions, flat or nested. What
else `/verify` wants of the dataset's row is under `row`.

Source: NVIDIA NeMo Gym's resources-server interface.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, ToolSpec, system, tool_result, user
from whetstone.environments.commands import arguments_of
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import Asking, Refused, reward_of
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.tools.plain_text import plain
from whetstone.trajectory import CallRecord, Task


class NemoGym:
    """One session of a server. Ends: terminated on an action without a call.

    Args:
        url: Where the resources server is.
        instruction: A system message.
        success_at: The reward of `/verify` from which the episode is a success.
        seconds: How long one answer may take.
    """

    def __init__(self, *, url: str, instruction: str = "", success_at: float = 1.0, seconds: float = 60.0) -> None:
        self._url, self._seconds = url, seconds
        self._asking = Asking(url, seconds=seconds)
        self.instruction, self.success_at = instruction, success_at
        self._task: Task | None = None
        self._items: list[dict[str, Any]] = []
        self._opening: list[dict[str, Any]] = []
        self._tools: tuple[ToolSpec, ...] = ()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin a session; its cookie is the session."""
        await self._asking.close()
        self._asking = Asking(self._url, seconds=self._seconds)
        self._task, self._items = task, []
        self._tools = tuple(_spec(tool) for tool in task.private.get("tools", ()))
        await self._asking.ask("POST", "/seed_session", dict(task.private.get("row", {})))
        messages = (system(self.instruction), user(task.prompt)) if self.instruction else (user(task.prompt),)
        self._opening = [message.to_openai() for message in messages]
        return Observation(messages, self._tools)

    async def step(self, action: Message) -> StepResult:
        """Each call at its route; an action without one is the answer, unless it tried to be a call."""
        if self._task is None:
            raise EpisodeError("a step before the first reset")
        if action.malformed:
            told = tuple(tool_result(f"error: {plain(what)}") for what in action.malformed)
            return StepResult(Observation(told), calls=tuple(CallRecord("", "malformed_call", 0.0) for _ in told))
        if action.text or not action.tool_calls:
            said = [{"type": "output_text", "text": action.text, "annotations": []}]
            number = len(self._items)
            message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
            self._items.append({**message, "content": said})
        if not action.tool_calls:
            return StepResult(Observation(()), terminated=True)
        answers, records = [], []
        for call in action.tool_calls:
            answer, outcome = await self._called(call.name, call.arguments)
            called = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            self._items += [called, {"type": "function_call_output", "call_id": call.id, "output": answer}]
            answers.append(tool_result(answer, call_id=call.id or None))
            records.append(CallRecord(plain(call.name), outcome, 0.0))
        return StepResult(Observation(tuple(answers)), calls=tuple(records))

    async def verdict(self) -> Mapping[str, Any]:
        """The server's reward, with its components."""
        assert self._task is not None
        tools = [{"type": "function", "name": t.name, "parameters": dict(t.parameters)} for t in self._tools]
        response = {
            "id": "resp_0", "created_at": 0, "model": "policy", "object": "response", "output": self._items,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": tools,
        }  # fmt: skip
        row = dict(self._task.private.get("row", {}))
        body = {**row, "responses_create_params": {"input": self._opening, "tools": tools}, "response": response}
        said = await self._asking.ask("POST", "/verify", body)
        where = f"{self._url}/verify"
        if not isinstance(said, Mapping) or said.get("reward") is None:
            raise InfrastructureError(f"{where}: its answer has no reward: {str(said)[:80]!r}")
        reward, parts = reward_of(said["reward"], where), dict(said.get("reward_components") or {})
        return {
            **parts, "success": reward >= self.success_at, "score": max(0.0, min(1.0, reward)), "reward": reward,
        }  # fmt: skip

    async def close(self) -> None:
        """Let go of the session."""
        self._task = None
        await self._asking.close()

    async def _called(self, name: str, arguments: str) -> tuple[str, str]:
        """(what comes back, how it went)"""
        if name not in {tool.name for tool in self._tools}:
            return plain(f"error: there is no tool {name[:100]}"), "unknown_tool"
        given = arguments_of(arguments)
        if given is None:
            return "error: the arguments are no JSON object", "invalid_arguments"
        try:
            said = await self._asking.ask("POST", f"/{name}", given, acting=True)
        except Refused as refused:
            if refused.status == 404 and str(refused) == "Not Found":
                raise InfrastructureError(f"{self._url}/{name}: no such route, though the task offers it") from None
            return plain(f"error: {refused}"), "tool_error"
        return plain(said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)), "ok"


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool.get("function", tool)
    return ToolSpec(function["name"], function.get("description") or "", function.get("parameters") or {})
