"""Serialization of tasks, messages and results for environment servers, protocol version 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from whetstone.chat import Message, ToolSpec
from whetstone.environments.protocol import Observation, SeatRequest, StepResult
from whetstone.json_lines import to_writable
from whetstone.trajectory import Author, CallRecord, EndReason, InnerCall, Task

PROTOCOL = 1
"""Version of the protocol between Whetstone's environment server and client."""

_Kind = TypeVar("_Kind")
_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    bool: "true or false",
}


def task_to_wire(task: Task) -> dict[str, Any]:
    """Return a task as JSON, including the private data that its verdict needs."""
    row = {"id": task.id, "prompt": task.prompt, "private": dict(task.private), "tags": dict(task.tags)}
    return row | (
        {"messages": [to_writable(message.to_openai()) for message in task.messages]} if task.messages else {}
    )


def task_from_wire(row: Mapping[str, Any]) -> Task:
    """Parse a task that `task_to_wire` returned.

    Raises:
        ValueError: If it is not valid.
    """
    private, tags = (parse_field(row, name, dict, {}) for name in ("private", "tags"))
    words = {name: parse_field(tags, name, str) for name in tags}
    messages = tuple(map(Message.from_openai, parse_field(row, "messages", list, [])))
    return Task(parse_field(row, "id", str), parse_field(row, "prompt", str, ""), private, words, messages)


def observation_to_wire(observation: Observation) -> dict[str, Any]:
    """Return an observation as JSON with messages, tools, facts and author."""
    return {
        "messages": [to_writable(message.to_openai()) for message in observation.messages],
        "tools": [spec.to_openai() for spec in observation.tools],
        "declared": dict(observation.declared),
        "author": str(observation.author),
    }


def observation_from_wire(row: Mapping[str, Any]) -> Observation:
    """Parse an observation that `observation_to_wire` returned.

    Raises:
        ValueError: If it is not valid.
    """
    declared = parse_field(row, "declared", dict, {})
    return Observation(
        tuple(map(Message.from_openai, parse_field(row, "messages", list))),
        tuple(map(_spec, parse_field(row, "tools", list, []))),
        tuple((name, parse_field(declared, name, str)) for name in declared),
        Author(parse_field(row, "author", str, Author.ENVIRONMENT)),
    )


def result_to_wire(result: StepResult) -> dict[str, Any]:
    """Return the result of an action as JSON: observation, reward, end and calls."""
    return {
        "observation": observation_to_wire(result.observation),
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "reason": result.reason,
        "calls": [to_writable(asdict(call)) for call in result.calls],
    }


def result_from_wire(row: Mapping[str, Any]) -> StepResult:
    """Parse a result that `result_to_wire` returned.

    Raises:
        ValueError: If it is not valid.
    """
    observation = observation_from_wire(parse_field(row, "observation", dict))
    reward, reason = row.get("reward"), row.get("reason")
    return StepResult(
        observation,
        reward=None if reward is None else _finite(row, "reward"),
        terminated=bool(row.get("terminated")),
        truncated=bool(row.get("truncated")),
        reason=None if reason is None else EndReason(parse_field(row, "reason", str)),
        calls=tuple(map(_record, parse_field(row, "calls", list, []))),
    )


def seat_from_wire(row: Mapping[str, Any]) -> SeatRequest:
    """Parse the seat of an episode.

    Raises:
        ValueError: If a field is missing or has another type.
    """
    return SeatRequest(parse_field(row, "role", str), parse_field(row, "table", str), parse_field(row, "seed", int))


def parse_field(row: Mapping[str, Any], name: str, kind: type[_Kind], default: Any = ...) -> _Kind:
    """Return a field of a JSON object and check its type.

    Args:
        row: JSON object.
        name: Name of the field.
        kind: Expected type.
        default: Value of a missing field; `...`: the field is required.

    Raises:
        ValueError: If the field has another type, or is missing and has no default.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object with `{name}`, got {str(row)[:80]!r}")
    value = row.get(name, default)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        shown_value = "missing" if value is ... else f"{str(value)[:80]!r}"
        raise ValueError(f"`{name}` is {shown_value}, expected {_NAMES.get(kind, kind.__name__)}")
    return value


def _spec(tool: Any) -> ToolSpec:
    """Parse a tool spec in the format of OpenAI."""
    function = parse_field(tool, "function", dict)
    description = parse_field(function, "description", str, "")
    return ToolSpec(parse_field(function, "name", str), description, dict(parse_field(function, "parameters", dict)))


def _record(row: Any) -> CallRecord:
    """Parse the record of a tool call."""
    return CallRecord(
        parse_field(row, "name", str),
        parse_field(row, "outcome", str),
        _finite(row, "seconds"),
        parse_field(row, "truncated", bool, False),
        _finite({"cost": 0.0, **row}, "cost"),
        parse_field(row, "error", str, ""),
        tuple(map(_inner_call, parse_field(row, "inner", list, []))),
    )


def _inner_call(row: Any) -> InnerCall:
    return InnerCall(
        _record(parse_field(row, "record", dict)),
        parse_field(row, "arguments", str),
        parse_field(row, "result", str),
    )


def _finite(row: Mapping[str, Any], name: str) -> float:
    """Return a field that must be a finite number.

    Raises:
        ValueError: If it is not.
    """
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise ValueError(f"`{name}` is {str(value)[:40]!r}, not a finite number")
    return float(value)
