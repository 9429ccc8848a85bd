"""A client of NeMo Gym's resources servers: a session, a route a tool, and `/verify` at the end; and their tasks.

The tools of an episode are in the task: `tools` in its private data, as OpenAI declares functions, flat or nested. What
else `/verify` wants of the dataset's row is under `row`; where that has `responses_create_params`, as published rows
do, the opening and the tools are theirs. `NemoGymTasks` reads such rows.

Easy to get wrong: `/verify` reads the whole transcript, and many of them raise on a call whose arguments are none. That
is the model's mistake, told to it when it made it, and its episode is a failure, not void.

Source: NVIDIA NeMo Gym's resources-server interface.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant, system, tool_result, user
from whetstone.environments.commands import arguments_of
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import Asking, Refused, reward_of
from whetstone.errors import EpisodeError, InfrastructureError, TaskError, did_you_mean
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.listed import ListedTasks
from whetstone.tasks.splits import split_unless_all
from whetstone.tools.plain_text import plain
from whetstone.trajectory import CallRecord, Task

_PARAMS = "responses_create_params"
_SAID_BY = {"system": system, "developer": system, "user": user, "assistant": assistant}


class NemoGym:
    """One session of a server. Ends: terminated on an action without a call.

    Args:
        url: URL of the resources server.
        instruction: System message before that of the task.
        success_at: The reward of `/verify` from which the episode is a success.
        seconds: How long one answer may take.
    """

    def __init__(self, *, url: str, instruction: str = "", success_at: float = 1.0, seconds: float = 60.0) -> None:
        self._url, self._seconds = url, seconds
        self._asking = Asking(url, seconds=seconds)
        self.instruction, self.success_at = instruction, success_at
        self._task: Task | None = None
        self._items: list[dict[str, Any]] = []
        self._params: dict[str, Any] = {}
        self._tools: dict[str, ToolSpec] = {}
        self._mistakes = 0

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin a session; its cookie is the session."""
        await self._asking.close()
        self._asking = Asking(self._url, seconds=self._seconds)
        self._task, self._items, self._mistakes = task, [], 0
        row = dict(task.private.get("row", {}))
        try:
            messages = _opening(task)
            self._params, self._tools = _declared(task, messages)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TaskError(f"task {task.id}: {_PARAMS} or tools are not as NeMo Gym has them: {error}") from None
        await self._asking.ask("POST", "/seed_session", row)
        own = (system(self.instruction),) if self.instruction else ()
        return Observation((*own, *messages), tuple(self._tools.values()))

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
            self._mistakes += outcome != "ok"
            id = call.id or f"call_{len(self._items)}"
            called = {"type": "function_call", "call_id": id, "name": call.name, "arguments": call.arguments}
            self._items += [called, {"type": "function_call_output", "call_id": id, "output": answer}]
            answers.append(tool_result(answer, call_id=call.id or None))
            records.append(CallRecord(plain(call.name), outcome, 0.0))
        return StepResult(Observation(tuple(answers)), calls=tuple(records))

    async def verdict(self) -> Mapping[str, Any]:
        """The server's reward, with its components; 0 and `unverified` where it cannot read what the model did.

        Raises:
            InfrastructureError: It fails, or has no reward, and the model had made no mistake.
            TaskError: It does not take the task's row.
        """
        assert self._task is not None
        response = {
            "id": "resp_0", "created_at": 0, "model": "policy", "object": "response", "output": self._items,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": self._params["tools"],
        }  # fmt: skip
        body = {**self._task.private.get("row", {}), _PARAMS: self._params, "response": response}
        where = f"{self._url}/verify"
        try:
            said = await self._asking.ask("POST", "/verify", body)
        except (InfrastructureError, TaskError):
            if self._mistakes and await self._asking.there():
                return {"success": False, "score": 0.0, "reward": 0.0, "unverified": 1.0}
            raise
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
        if name not in self._tools:
            shown = plain(name[:100])
            return f"error: there is no tool {shown}{did_you_mean(shown, self._tools)}", "unknown_tool"
        given = arguments_of(arguments)
        if given is None:
            return "error: the arguments are no JSON object", "invalid_arguments"
        try:
            said = await self._asking.ask("POST", f"/{name}", given, acting=True)
        except Refused as refused:
            if refused.status == 404 and str(refused) == "Not Found":
                raise InfrastructureError(f"{self._url}/{name}: no such route, though the task offers it") from None
            if refused.unanswered and not await self._asking.there():
                raise InfrastructureError(f"{self._url}/{name}: {refused}") from None
            outcome = "invalid_arguments" if refused.status == 422 else "tool_error" if refused.status else "timeout"
            return plain(f"error: {refused}"), outcome
        return plain(said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)), "ok"


class NemoGymTasks(ListedTasks):
    """The rows of a NeMo Gym dataset as tasks.

    Args:
        path: JSON lines, each with `responses_create_params`.
        seed: The order in which training tasks come.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, and trains on the same.

    Raises:
        TaskError: The file is missing or has a bad line.
    """

    def __init__(self, *, path: str, seed: int = 0, held_out_fraction: float = 0.1) -> None:
        tasks, _ = read_tasks(Path(path), _task)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=path), seed=seed)


def _task(row: Mapping[str, Any], number: int) -> Task:
    given = row[_PARAMS]
    task = Task(str(row.get("id", number)), "", {"row": dict(row)})
    try:
        messages = _opening(task)
        _declared(task, messages)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{_PARAMS} is not as NeMo Gym has it: {error}") from None
    except KeyError as error:
        raise ValueError(f"{_PARAMS}: {error} is missing") from None
    said = given["input"] if isinstance(given["input"], str) else messages[-1].text
    return Task(task.id, str(said), task.private)


def _opening(task: Task) -> tuple[Message, ...]:
    """What the agent reads first: the row's own messages, else the task's prompt."""
    given = task.private.get("row", {}).get(_PARAMS, {}).get("input")
    if given is None:
        return (user(task.prompt),)
    if isinstance(given, str):
        return (user(given),)
    for item in given:
        if item.get("type", "message") != "message" or item.get("role") not in _SAID_BY:
            raise ValueError(f"an input of messages was to be here, got {str(item)[:80]}")
    return tuple(_SAID_BY[item["role"]](_text(item["content"])) for item in given)


def _declared(task: Task, messages: Sequence[Message]) -> tuple[dict[str, Any], dict[str, ToolSpec]]:
    """(what the model was asked, as `/verify` is told; the tools by name)"""
    given = dict(task.private.get("row", {}).get(_PARAMS, {}))
    declared = task.private.get("tools", given.get("tools", ()))
    functions = [tool.get("function", tool) for tool in declared]
    tools = [
        {
            "type": "function",
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {},
            "strict": bool(function.get("strict", False)),  # a declaration without it is refused
        }
        for function in functions
    ]
    specs = {tool["name"]: ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in tools}
    written = [{"role": message.role, "content": message.text} for message in messages]
    return {"input": written, **given, "tools": tools}, specs


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(str(part["text"]) for part in content)
