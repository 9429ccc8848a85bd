"""Functions that are called and not carried out: one turn, with the functions the task brings along.

What was called is judged by the reward (`bfcl`, `tool_rl`). Names with dots are offered with underscores, since models'
formats do not take dots. What a task says before its request, `task.private["messages"]`, is said in its roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat import Message, Text, ToolCall, ToolSpec
from whetstone.environments.commands import arguments_of
from whetstone.environments.protocol import Observation, StepResult
from whetstone.trajectory import CallRecord, EndReason, Task

_TYPES = {
    "dict": "object", "hashmap": "object", "float": "number", "double": "number", "long": "integer", "int": "integer",
    "tuple": "array", "list": "array", "arraylist": "array", "any": "string", "char": "string", "str": "string",
    "bool": "boolean",
}  # fmt: skip
_KINDS = ("object", "number", "integer", "array", "string", "boolean", "null")


class FunctionCalls:
    """Offers the functions in `task.private["functions"]`; ends with the first answer, whatever it calls."""

    stateless = True

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The request and the functions."""
        specs = tuple(offered(schema, task.private.get("language", "")) for schema in task.private["functions"])
        self._names = frozenset(spec.name for spec in specs)
        said = task.private.get("messages")
        opening = tuple(Message(one["role"], (Text(one["content"]),)) for one in said) if said else task.opening
        return Observation(opening, specs)

    async def step(self, action: Message) -> StepResult:
        """It is over."""
        calls = [CallRecord(call.name, self._outcome(call), 0.0) for call in action.tool_calls]
        calls += [CallRecord("", "malformed_call", 0.0) for _ in action.malformed]
        reason = EndReason.TOOL_STOPPED if action.tool_calls else EndReason.TERMINATED
        return StepResult(Observation(()), terminated=True, reason=reason, calls=tuple(calls))

    async def close(self) -> None:
        """Nothing is held."""

    def _outcome(self, call: ToolCall) -> str:
        if call.name not in self._names:
            return "unknown_tool"
        return "invalid_arguments" if arguments_of(call.arguments) is None else "ok"


def offered(schema: Mapping[str, Any], language: str = "") -> ToolSpec:
    """A function as it is told to a model: its types as JSON Schema names them.

    Args:
        language: `java` or `javascript`: every value is a text in that language, of the type the schema names.
    """
    parameters = schema.get("parameters", {})
    if language:
        written = {name: _as_text(one, language) for name, one in parameters.get("properties", {}).items()}
        parameters = {**parameters, "properties": written}
    return ToolSpec(
        str(schema["name"]).replace(".", "_"),
        str(schema.get("description", "")),
        _schema({"type": "object", **parameters}),
    )


def _as_text(schema: Mapping[str, Any], language: str) -> dict[str, str]:
    kind, elements = schema.get("type", "any"), schema.get("items", {}).get("type", "")
    of = f" of {elements}" if elements else ""
    return {"type": "string", "description": f"{schema.get('description', '')} ({language} source: {kind}{of})".strip()}


def _schema(given: Any) -> Any:
    if isinstance(given, Mapping):
        changed = {key: _schema(value) for key, value in given.items()}
        kind = given.get("type")
        if isinstance(kind, str):
            del changed["type"]
            known = _TYPES.get(kind.lower(), kind.lower())
            changed |= {"type": known} if known in _KINDS else {}
        return changed
    return [_schema(one) for one in given] if isinstance(given, list) else given
