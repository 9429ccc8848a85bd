"""How are tasks, messages and results written for a server, and read again? Version 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments.protocol import Observation, StepResult
from whetstone.trajectory import Author, CallRecord, EndReason, Task
from whetstone.trajectory_json import writable

PROTOCOL = 1


def task_to_wire(task: Task) -> dict[str, Any]:
    """A task, its private data among it: the environment judges by it."""
    return {"id": task.id, "prompt": task.prompt, "private": dict(task.private), "tags": dict(task.tags)}


def task_from_wire(row: Mapping[str, Any]) -> Task:
    """What `task_to_wire` wrote."""
    return Task(str(row["id"]), str(row.get("prompt", "")), row.get("private", {}), row.get("tags", {}))


def observation_to_wire(observation: Observation) -> dict[str, Any]:
    """What an agent is shown."""
    return {
        "messages": [writable(message.to_openai()) for message in observation.messages],
        "tools": [spec.to_openai() for spec in observation.tools],
        "declared": dict(observation.declared),
        "author": str(observation.author),
    }


def observation_from_wire(row: Mapping[str, Any]) -> Observation:
    """What `observation_to_wire` wrote."""
    functions = [tool["function"] for tool in row.get("tools", ())]
    return Observation(
        tuple(map(Message.from_openai, row["messages"])),
        tuple(ToolSpec(f["name"], f.get("description", ""), f["parameters"]) for f in functions),
        tuple(row.get("declared", {}).items()),
        Author(row.get("author", Author.ENVIRONMENT)),
    )


def result_to_wire(result: StepResult) -> dict[str, Any]:
    """What an action led to."""
    return {
        "observation": observation_to_wire(result.observation),
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "reason": result.reason,
        "calls": [writable(asdict(call)) for call in result.calls],
    }


def result_from_wire(row: Mapping[str, Any]) -> StepResult:
    """What `result_to_wire` wrote."""
    return StepResult(
        observation_from_wire(row["observation"]),
        reward=_finite(row.get("reward")),
        terminated=bool(row.get("terminated")),
        truncated=bool(row.get("truncated")),
        reason=None if row.get("reason") is None else EndReason(row["reason"]),
        calls=tuple(CallRecord(**call) for call in row.get("calls", ())),
    )


def _finite(reward: Any) -> float | None:
    if reward is not None and (isinstance(reward, bool) or not math.isfinite(reward)):
        raise ValueError(f"a reward is {str(reward)[:40]}, no finite number")
    return reward if reward is None else float(reward)
