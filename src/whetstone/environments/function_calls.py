"""Environment for function calling without execution: one turn, with the functions of the task.

A reward (`bfcl`, `tool_rl`) scores the calls. Names with dots are offered with underscores, since models' formats do
not allow dots. The messages before the request, `task.private["messages"]`, keep their roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, Text, ToolCall, ToolSpec
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.text_actions import parse_or_none
from whetstone.trajectory import CallRecord, EndReason, Task

_TYPES = {
    "dict": "object", "hashmap": "object", "float": "number", "double": "number", "long": "integer", "int": "integer",
    "tuple": "array", "list": "array", "arraylist": "array", "any": "string", "char": "string", "str": "string",
    "bool": "boolean",
}  # fmt: skip
_KINDS = ("object", "number", "integer", "array", "string", "boolean", "null")


class FunctionCallEnvironment:
    """Environment that offers a task's functions and records calls without execution.

    The functions are in `task.private["functions"]`. Ends with the first answer, with or without calls: `tool_stopped`
    if it has calls, else `terminated`.
    """

    stateless = True

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the request of the task and the specs of its functions."""
        specs = tuple(function_spec(schema, task.private.get("language", "")) for schema in task.private["functions"])
        self._names = frozenset(spec.name for spec in specs)
        messages = task.private.get("messages")
        opening = tuple(Message(one["role"], (Text(one["content"]),)) for one in messages) if messages else task.opening
        return Observation(opening, specs)

    async def step(self, action: Message) -> StepResult:
        """Record the calls of the action and end the episode.

        The outcome of a call is `ok`, `unknown_tool`, `invalid_arguments` or `malformed_call`.
        """
        calls = [CallRecord(call.name, self._outcome(call), 0.0) for call in action.tool_calls]
        calls += [CallRecord("", "malformed_call", 0.0) for _ in action.malformed]
        reason = EndReason.TOOL_STOPPED if action.tool_calls else EndReason.TERMINATED
        return StepResult(Observation(()), terminated=True, reason=reason, calls=tuple(calls))

    async def close(self) -> None:
        """Do nothing; the environment has no resources."""

    def _outcome(self, call: ToolCall) -> str:
        if call.name not in self._names:
            return "unknown_tool"
        return "invalid_arguments" if parse_or_none(call.arguments) is None else "ok"


def function_spec(schema: Mapping[str, Any], language: str = "") -> ToolSpec:
    """Convert a function of the BFCL benchmark to a tool spec with JSON Schema types.

    Args:
        schema: Function with `name`, `description` and `parameters`, in the types of its language.
        language: `java` or `javascript`: every value is a text in that language, of the type in the schema; empty:
            Python.
    """
    parameters = schema.get("parameters", {})
    if language:
        written = {name: _text_schema(one, language) for name, one in parameters.get("properties", {}).items()}
        parameters = {**parameters, "properties": written}
    return ToolSpec(
        str(schema["name"]).replace(".", "_"),
        str(schema.get("description", "")),
        _json_schema({"type": "object", **parameters}),
    )


def _text_schema(schema: Mapping[str, Any], language: str) -> dict[str, str]:
    kind, elements = schema.get("type", "any"), schema.get("items", {}).get("type", "")
    of = f" of {elements}" if elements else ""
    return {"type": "string", "description": f"{schema.get('description', '')} ({language} source: {kind}{of})".strip()}


def _json_schema(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        changed = {key: _json_schema(value) for key, value in schema.items()}
        kind = schema.get("type")
        if isinstance(kind, str):
            del changed["type"]
            known = _TYPES.get(kind.lower(), kind.lower())
            changed |= {"type": known} if known in _KINDS else {}
        return changed
    return [_json_schema(one) for one in schema] if isinstance(schema, list) else schema
