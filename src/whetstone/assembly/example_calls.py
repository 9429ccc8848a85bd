"""Players and calls with example arguments, for checks before a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.evaluation.checks import Check, CheckStatus
from whetstone.tool_calls import describe_failing_tools, tool_statistics
from whetstone.trajectory import CallRecord, Task

_OF_ARGUMENTS = ("IndexError", "KeyError", "LookupError", "ValueError")
"""Exceptions of a tool that example arguments can cause."""


class Clueless:
    """Does not know, whatever it is asked."""

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
        return assistant("", ToolCall(self.spec.name, json.dumps(example_of(self.spec.parameters)), "call_0_0"))


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return the smallest value that a JSON schema of usual form allows."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return example_of(schema[key][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        known = schema.get("properties", {})
        return {name: example_of(known.get(name, {})) for name in schema.get("required", ())}
    if kind == "array":
        return [example_of(schema.get("items", {}))] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": False, "null": None}.get(str(kind), "1" * max(1, schema.get("minLength", 1)))


def judge_failures(lines: Sequence[str], errors: Sequence[str]) -> Check:
    """Return the result of calls with example arguments that all failed, which these arguments may have caused."""
    if all(error.startswith(_OF_ARGUMENTS) for error in errors):
        mend = "raise ToolError for arguments that the model must correct (from whetstone import ToolError)"
        message = f"{'; '.join(lines)}; the example arguments may be the cause"
        return Check("", CheckStatus.WARN, message, mend, is_decided=False)
    return Check("", CheckStatus.FAIL, "; ".join(lines))


def describe_failures_of_tools(calls: Sequence[CallRecord]) -> list[str]:
    """Return a line for each tool that itself failed in all of these calls."""
    statistics = tool_statistics(calls)
    return describe_failing_tools({name: tool for name, tool in statistics.items() if tool.failed})
