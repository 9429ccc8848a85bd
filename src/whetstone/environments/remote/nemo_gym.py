"""Client of NeMo Gym's resources servers: a session, one route per tool, and `/verify` at the end; and their tasks.

The tools of an episode are in the task: `tools` in its private data, as OpenAI declares functions, flat or nested.
Other fields of the dataset's row that `/verify` requires are under `row`. If the row has `responses_create_params`, as
published rows do, the initial messages and the tools are read from there. `NemoGymTasks` reads such rows.

Note:
    `/verify` reads the whole transcript, and many servers raise on a call whose arguments are not valid JSON. That is
    the model's mistake, which it read in the result of the call, and the episode is a failure, not void.

Source: NVIDIA NeMo Gym's resources-server interface.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant, system, tool_result, user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import JsonHttpClient, RequestRefusedError, parse_reward
from whetstone.environments.text_actions import parse_or_none
from whetstone.errors import EpisodeError, InfrastructureError, TaskError, did_you_mean
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.splits import split_unless_all
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import CallRecord, Task

_PARAMS = "responses_create_params"
_MESSAGE_BY_ROLE = {"system": system, "developer": system, "user": user, "assistant": assistant}


class NemoGym:
    """Environment whose sessions run on a resources server of NeMo Gym.

    Ends: terminated on an action without a call.

    Args:
        url: URL of the resources server.
        instruction: System message before that of the task.
        success_at: Minimum reward of `/verify` of a success.
        seconds: Timeout of one request in seconds.
    """

    def __init__(self, *, url: str, instruction: str = "", success_at: float = 1.0, seconds: float = 60.0) -> None:
        self._url, self._seconds = url, seconds
        self._asking = JsonHttpClient(url, seconds=seconds)
        self.instruction, self.success_at = instruction, success_at
        self._task: Task | None = None
        self._items: list[dict[str, Any]] = []
        self._params: dict[str, Any] = {}
        self._tools: dict[str, ToolSpec] = {}
        self._mistakes = 0

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Start a session on the server and return the task's messages and tools.

        A cookie identifies the session.

        Raises:
            TaskError: If the task does not have the format of NeMo Gym.
        """
        await self._asking.close()
        self._asking = JsonHttpClient(self._url, seconds=self._seconds)
        self._task, self._items, self._mistakes = task, [], 0
        row = dict(task.private.get("row", {}))
        try:
            messages = _opening(task)
            self._params, self._tools = _declared(task, messages)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TaskError(f"task {task.id}: {_PARAMS} or tools do not have the format of NeMo Gym: {error}") from None
        await self._asking.send_request("POST", "/seed_session", row)
        own = (system(self.instruction),) if self.instruction else ()
        return Observation((*own, *messages), tuple(self._tools.values()))

    async def step(self, action: Message) -> StepResult:
        """Send each call of an action to the route of its tool.

        An action without calls is the answer and ends the episode, unless a call was malformed.
        """
        if self._task is None:
            raise EpisodeError("step was called before the first reset; call reset first")
        if action.malformed:
            messages = tuple(tool_result(f"error: {sanitize_text(what)}") for what in action.malformed)
            return StepResult(
                Observation(messages), calls=tuple(CallRecord("", "malformed_call", 0.0) for _ in messages)
            )
        if action.text or not action.tool_calls:
            content = [{"type": "output_text", "text": action.text, "annotations": []}]
            number = len(self._items)
            message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
            self._items.append({**message, "content": content})
        if not action.tool_calls:
            return StepResult(Observation(()), terminated=True)
        answers, records = [], []
        for call in action.tool_calls:
            answer, outcome = await self._execute_call(call.name, call.arguments)
            self._mistakes += outcome != "ok"
            id = call.id or f"call_{len(self._items)}"
            called = {"type": "function_call", "call_id": id, "name": call.name, "arguments": call.arguments}
            self._items += [called, {"type": "function_call_output", "call_id": id, "output": answer}]
            answers.append(tool_result(answer, call_id=call.id or None))
            records.append(CallRecord(sanitize_text(call.name), outcome, 0.0))
        return StepResult(Observation(tuple(answers)), calls=tuple(records))

    async def verdict(self) -> Mapping[str, Any]:
        """Return the server's reward with its components.

        If the server cannot verify an episode with calls that failed, the reward is 0 and `unverified` is 1.

        Raises:
            InfrastructureError: If the server fails, or returns no reward, and the model made no mistake.
            TaskError: If the server refuses the task's row.
        """
        assert self._task is not None
        response = {
            "id": "resp_0", "created_at": 0, "model": "policy", "object": "response", "output": self._items,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": self._params["tools"],
        }  # fmt: skip
        body = {**self._task.private.get("row", {}), _PARAMS: self._params, "response": response}
        where = f"{self._url}/verify"
        try:
            response_body = await self._asking.send_request("POST", "/verify", body)
        except (InfrastructureError, TaskError):
            if self._mistakes and await self._asking.is_available():
                return {"success": False, "score": 0.0, "reward": 0.0, "unverified": 1.0}
            raise
        if not isinstance(response_body, Mapping) or response_body.get("reward") is None:
            raise InfrastructureError(f"{where}: the response has no reward: {str(response_body)[:80]!r}")
        reward, parts = parse_reward(response_body["reward"], where), dict(response_body.get("reward_components") or {})
        return {
            **parts, "success": reward >= self.success_at, "score": max(0.0, min(1.0, reward)), "reward": reward,
        }  # fmt: skip

    async def close(self) -> None:
        """Close the session and the connection to the resources server."""
        self._task = None
        await self._asking.close()

    async def _execute_call(self, name: str, arguments: str) -> tuple[str, str]:
        """Return the text and the outcome of a call.

        Raises:
            InfrastructureError: If the server is unavailable, or lacks the route of a declared tool.
        """
        if name not in self._tools:
            readable_name = sanitize_text(name[:100])
            return f"error: there is no tool {readable_name}{did_you_mean(readable_name, self._tools)}", "unknown_tool"
        parsed = parse_or_none(arguments)
        if parsed is None:
            return "error: the arguments are no JSON object", "invalid_arguments"
        try:
            result = await self._asking.send_request("POST", f"/{name}", parsed, acting=True)
        except RequestRefusedError as refused:
            if refused.status == 404 and str(refused) == "Not Found":
                raise InfrastructureError(
                    f"{self._url}/{name}: the server has no such route, although the task declares the tool"
                ) from None
            if refused.may_be_server_failure and not await self._asking.is_available():
                raise InfrastructureError(f"{self._url}/{name}: {refused}") from None
            outcome = "invalid_arguments" if refused.status == 422 else "tool_error" if refused.status else "timeout"
            return sanitize_text(f"error: {refused}"), outcome
        return sanitize_text(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)), "ok"


class NemoGymTasks(ListedTasks):
    """Task source of the rows of a NeMo Gym dataset.

    Args:
        path: JSON lines, each with `responses_create_params`.
        seed: Determines the order of training tasks.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, and trains on the same.

    Raises:
        TaskError: If the file is missing or has a bad line.
    """

    def __init__(self, *, path: str, seed: int = 0, held_out_fraction: float = 0.1) -> None:
        tasks, _ = read_tasks(Path(path), _task)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=path), seed=seed)


def _task(row: Mapping[str, Any], number: int) -> Task:
    """Create the task of a row.

    Raises:
        ValueError: If the row does not have the format of NeMo Gym.
    """
    params = row[_PARAMS]
    task = Task(str(row.get("id", number)), "", {"row": dict(row)})
    try:
        messages = _opening(task)
        _declared(task, messages)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{_PARAMS} does not have the format of NeMo Gym: {error}") from None
    except KeyError as error:
        raise ValueError(f"{_PARAMS}: {error} is missing") from None
    prompt = params["input"] if isinstance(params["input"], str) else messages[-1].text
    return Task(task.id, str(prompt), task.private)


def _opening(task: Task) -> tuple[Message, ...]:
    """Return the initial messages: the input of the row, or else the task's prompt.

    Raises:
        ValueError: If the input is not a text or a list of messages.
    """
    items = task.private.get("row", {}).get(_PARAMS, {}).get("input")
    if items is None:
        return (user(task.prompt),)
    if isinstance(items, str):
        return (user(items),)
    for item in items:
        if item.get("type", "message") != "message" or item.get("role") not in _MESSAGE_BY_ROLE:
            raise ValueError(f"expected `input` to be a list of messages, got {str(item)[:80]}")
    return tuple(_MESSAGE_BY_ROLE[item["role"]](_text(item["content"])) for item in items)


def _declared(task: Task, messages: Sequence[Message]) -> tuple[dict[str, Any], dict[str, ToolSpec]]:
    """Return the model's request as `/verify` receives it, and the tools by name."""
    params = dict(task.private.get("row", {}).get(_PARAMS, {}))
    declared = task.private.get("tools", params.get("tools", ()))
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
    return {"input": written, **params, "tools": tools}, specs


def _text(content: Any) -> str:
    """Return the content of a message as text: a string, or its parts joined."""
    return content if isinstance(content, str) else "".join(str(part["text"]) for part in content)
