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
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.asking import Asking
from whetstone.errors import EpisodeError
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
        """Each call at its route; an action without one is the answer."""
        if self._task is None:
            raise EpisodeError("a step before the first reset")
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
            records.append(CallRecord(call.name, outcome, 0.0))
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
        reward = float(said["reward"])
        parts = dict(said.get("reward_components") or {})
        return {**parts, "success": reward >= self.success_at, "score": reward}

    async def close(self) -> None:
        """Let go of the session."""
        self._task = None
        await self._asking.close()

    async def _called(self, name: str, arguments: str) -> tuple[str, str]:
        if name not in {tool.name for tool in self._tools}:
            return f"error: there is no tool {name}", "unknown_tool"
        try:
            given = json.loads(arguments)
        except ValueError:
            return "error: the arguments are not valid JSON", "invalid_arguments"
        said = await self._asking.ask("POST", f"/{name}", given)
        return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False), "ok"


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool.get("function", tool)
    return ToolSpec(function["name"], function.get("description") or "", function.get("parameters") or {})
