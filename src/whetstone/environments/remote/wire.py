"""How are tasks, messages and results written for a server, and read again? Version 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from whetstone.chat import Message, ToolSpec
from whetstone.environments.protocol import Observation, SeatRequest, StepResult
from whetstone.json_lines import writable
from whetstone.trajectory import Author, CallRecord, EndReason, Task

PROTOCOL = 1

_Kind = TypeVar("_Kind")
_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    bool: "true or false",
}


def task_to_wire(task: Task) -> dict[str, Any]:
    """A task, its private data among it: the environment judges by it."""
    row = {"id": task.id, "prompt": task.prompt, "private": dict(task.private), "tags": dict(task.tags)}
    return row | ({"messages": [writable(message.to_openai()) for message in task.messages]} if task.messages else {})


def task_from_wire(row: Mapping[str, Any]) -> Task:
    """What `task_to_wire` wrote.

    Raises:
        ValueError: It is none.
    """
    private, tags = (field_of(row, name, dict, {}) for name in ("private", "tags"))
    words = {name: field_of(tags, name, str) for name in tags}
    messages = tuple(map(Message.from_openai, field_of(row, "messages", list, [])))
    return Task(field_of(row, "id", str), field_of(row, "prompt", str, ""), private, words, messages)


def observation_to_wire(observation: Observation) -> dict[str, Any]:
    """What an agent is shown."""
    return {
        "messages": [writable(message.to_openai()) for message in observation.messages],
        "tools": [spec.to_openai() for spec in observation.tools],
        "declared": dict(observation.declared),
        "author": str(observation.author),
    }


def observation_from_wire(row: Mapping[str, Any]) -> Observation:
    """What `observation_to_wire` wrote.

    Raises:
        ValueError: It is none.
    """
    declared = field_of(row, "declared", dict, {})
    return Observation(
        tuple(map(Message.from_openai, field_of(row, "messages", list))),
        tuple(map(_spec, field_of(row, "tools", list, []))),
        tuple((name, field_of(declared, name, str)) for name in declared),
        Author(field_of(row, "author", str, Author.ENVIRONMENT)),
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
    """What `result_to_wire` wrote.

    Raises:
        ValueError: It is none.
    """
    observation = observation_from_wire(field_of(row, "observation", dict))
    reward, reason = row.get("reward"), row.get("reason")
    return StepResult(
        observation,
        reward=None if reward is None else _finite(row, "reward"),
        terminated=bool(row.get("terminated")),
        truncated=bool(row.get("truncated")),
        reason=None if reason is None else EndReason(field_of(row, "reason", str)),
        calls=tuple(map(_record, field_of(row, "calls", list, []))),
    )


def seat_from_wire(row: Mapping[str, Any]) -> SeatRequest:
    """Return the seat of an episode.

    Raises:
        ValueError: If a field is missing or has another type.
    """
    return SeatRequest(field_of(row, "role", str), field_of(row, "table", str), field_of(row, "seed", int))


def field_of(row: Mapping[str, Any], name: str, kind: type[_Kind], default: Any = ...) -> _Kind:
    """What is under a name, if it is of this kind.

    Raises:
        ValueError: It is of another, or is missing and has no default.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"an object with `{name}` was to be here, got {str(row)[:80]!r}")
    value = row.get(name, default)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        said = "missing" if value is ... else f"{str(value)[:80]!r}"
        raise ValueError(f"`{name}` is {said}, and was to be {_NAMES.get(kind, kind.__name__)}")
    return value


def _spec(tool: Any) -> ToolSpec:
    function = field_of(tool, "function", dict)
    description = field_of(function, "description", str, "")
    return ToolSpec(field_of(function, "name", str), description, dict(field_of(function, "parameters", dict)))


def _record(row: Any) -> CallRecord:
    return CallRecord(
        field_of(row, "name", str),
        field_of(row, "outcome", str),
        _finite(row, "seconds"),
        field_of(row, "truncated", bool, False),
        _finite({"cost": 0.0, **row}, "cost"),
    )


def _finite(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise ValueError(f"`{name}` is {str(value)[:40]!r}, no finite number")
    return float(value)
