"""Actions for checks without a model: calls with example arguments, and a wrong answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.trajectory import Task


class Clueless:
    """Expert that answers every task with "I do not know"."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """See `Expert`."""
        return assistant("I do not know.")


class OneCall:
    """Calls one tool with example arguments, then ends the episode."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """See `Expert`."""
        if any(message.role == "assistant" for message in conversation):
            return assistant("Done.")
        return assistant("", ToolCall(self.spec.name, json.dumps(example_value(self.spec.parameters)), "call_0_0"))


def example_value(schema: Mapping[str, Any]) -> Any:
    """Return the smallest value that a JSON schema of usual form allows."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return example_value(schema[key][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        known = schema.get("properties", {})
        return {name: example_value(known.get(name, {})) for name in schema.get("required", ())}
    if kind == "array":
        return [example_value(schema.get("items", {}))] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": False, "null": None}.get(str(kind), "1" * max(1, schema.get("minLength", 1)))
