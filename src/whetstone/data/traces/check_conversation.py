"""Checks whether an imported conversation can be trained, and the first reason if it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.data.traces.records import ImportProblem, RefusalReason
from whetstone.errors import did_you_mean

Message = Mapping[str, Any]


def check_messages(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> ImportProblem | None:
    """Return the first problem of a conversation in the OpenAI format, or None.

    Args:
        messages: The messages.
        tools: Declarations of tools in the OpenAI format.
    """
    if not messages:
        return ImportProblem(RefusalReason.NO_MESSAGES)
    if not any(message["role"] == "assistant" for message in messages):
        return ImportProblem(RefusalReason.NO_ANSWER)
    if messages[0]["role"] in ("assistant", "tool"):
        return ImportProblem(RefusalReason.FIRST_ROLE, f"messages[0] is of the {messages[0]['role']}")
    return _check_results(messages) or _check_tools(messages, tools)


def _check_results(messages: Sequence[Message]) -> ImportProblem | None:
    place = 0
    while place < len(messages):
        message = messages[place]
        if message["role"] == "tool":
            return ImportProblem(RefusalReason.MISSING_CALL, f"messages[{place}]")
        place += 1
        calls = message.get("tool_calls", ())
        if message["role"] != "assistant":
            continue
        end = place
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = messages[place:end]
        known = {call["id"] for call in calls}
        for index, result in enumerate(results, start=place):
            if len(results) > len(calls) or (known != {""} and result.get("tool_call_id", "") not in {*known, ""}):
                return ImportProblem(
                    RefusalReason.MISSING_CALL, f"messages[{index}] {result.get('tool_call_id', '')}".rstrip()
                )
        # a last turn can wait for its results, but calls in separate rows are one turn only if results follow
        if len(results) < len(calls) and (end < len(messages) or message.get("is_joined")):
            answered = {result.get("tool_call_id") for result in results}
            names = [call["function"]["name"] for call in calls if call["id"] not in answered]
            return ImportProblem(RefusalReason.MISSING_RESULT, f"messages[{place - 1}]: {', '.join(names)}")
        place = end
    return None


def _check_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> ImportProblem | None:
    calls = [
        (place, call["function"]) for place, message in enumerate(messages) for call in message.get("tool_calls", ())
    ]
    declared = {tool["function"]["name"]: tool["function"] for tool in tools}
    for place, call in calls:
        name = call["name"]
        if not tools:
            return ImportProblem(RefusalReason.MISSING_SCHEMA, f"messages[{place}] calls {name}; no tools are declared")
        if name not in declared:
            return ImportProblem(RefusalReason.UNDECLARED, f"messages[{place}]: {name}{did_you_mean(name, declared)}")
        if "parameters" not in declared[name] and json.loads(call["arguments"]):
            return ImportProblem(RefusalReason.MISSING_SCHEMA, f"{name} is declared without parameters")
    return None
