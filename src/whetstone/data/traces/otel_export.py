"""Episodes as spans of OpenTelemetry, in the semantic conventions for generative AI.

An episode is one trace: a span `invoke_agent` with the reward, one span `chat` per turn with all messages before the
turn and its output, and one span `execute_tool` per result. `read_otel` reads the same messages back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from whetstone.chat import Image, Message, ToolSpec
from whetstone.trajectory import EndReason, Trajectory

_CLIENT, _INTERNAL = 3, 1
"""Kinds of spans in OTLP."""
_NANOSECONDS = 1_000_000_000


def export_episode(
    episode: Trajectory, tools: Sequence[ToolSpec] = (), *, model: str = "policy", start_seconds: float = 0.0
) -> dict[str, Any]:
    """Convert an episode into one trace, as an OTLP/JSON object.

    Args:
        episode: The episode.
        tools: Tools of the episode.
        model: Name of the policy.
        start_seconds: Time of the first span, in seconds since 1970.

    Example:
        >>> from whetstone.trajectory import EndReason, Trajectory
        >>> trace = export_episode(Trajectory("e", "t", (), (), EndReason.TERMINATED))
        >>> trace["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"]
        'invoke_agent'
    """
    trace = _digest_id(16, episode.id)
    root = _digest_id(8, episode.id, "root")
    clock = int(start_seconds * _NANOSECONDS)
    spans: list[dict[str, Any]] = []
    definitions = json.dumps([{"type": "function", **spec.to_openai()["function"]} for spec in tools])
    messages = list(episode.opening)
    start = clock
    for number, turn in enumerate(episode.turns):
        end = clock + max(1, int(turn.generation_seconds * _NANOSECONDS))
        is_cut_off = number + 1 == len(episode.turns) and episode.ended is EndReason.MAX_TOKENS
        reason = "length" if is_cut_off else "tool_call" if turn.message.tool_calls else "stop"
        output = {**_message(turn.message), "finish_reason": reason}
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "whetstone",
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": episode.id,
            "gen_ai.response.finish_reasons": [reason],
            "gen_ai.usage.output_tokens": len(turn.action),
            "gen_ai.input.messages": json.dumps([_message(each) for each in messages], ensure_ascii=False),
            "gen_ai.output.messages": json.dumps([output], ensure_ascii=False),
            **({"gen_ai.tool.definitions": definitions} if tools else {}),
        }
        span = _span(f"chat {model}", attributes, (clock, end), kind=_CLIENT)
        spans.append({"traceId": trace, "spanId": _digest_id(8, episode.id, str(number)), "parentSpanId": root, **span})
        clock = end + max(1, int(turn.environment_seconds * _NANOSECONDS))
        for place, (name, attributes) in enumerate(_results(turn.message, turn.observation)):
            span = _span(name, {**attributes, "gen_ai.conversation.id": episode.id}, (end, clock), kind=_INTERNAL)
            span_id = _digest_id(8, episode.id, f"{number}/{place}")
            spans.append({"traceId": trace, "spanId": span_id, "parentSpanId": root, **span})
        messages += [turn.message, *turn.observation]
    first = {"traceId": trace, "spanId": root, **_root_span(episode, (start, max(clock, start + 1)))}
    resource = {"attributes": _pairs({"service.name": "whetstone"})}
    scope = {"scope": {"name": "whetstone"}, "spans": [first, *spans]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _root_span(episode: Trajectory, times: tuple[int, int]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": episode.id,
        "whetstone.task.id": episode.task_id,
        "whetstone.end_reason": str(episode.ended),
    }
    span = _span("invoke_agent", attributes, times, kind=_INTERNAL)
    if episode.score is not None and not episode.score.invalid:
        values: dict[str, Any] = {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": float(episode.score.value),
        }
        if episode.score.success is not None:
            values["gen_ai.evaluation.score.label"] = "pass" if episode.score.success else "fail"
        event = {"name": "gen_ai.evaluation.result", "timeUnixNano": str(times[1]), "attributes": _pairs(values)}
        span["events"] = [event]
    return span


def _results(message: Message, observation: Sequence[Message]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and attributes of a span for each tool result."""
    calls = {call.id: call for call in message.tool_calls}
    for result in observation:
        call = calls.get(result.tool_call_id or "")
        if result.role == "tool" and call is not None:
            yield (
                f"execute_tool {call.name}",
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.name,
                    "gen_ai.tool.type": "function",
                    "gen_ai.tool.call.id": call.id,
                    "gen_ai.tool.call.arguments": call.arguments,
                    "gen_ai.tool.call.result": result.text,
                },
            )


def _message(message: Message) -> dict[str, Any]:
    """Convert a message into the form with `parts` of the OpenTelemetry conventions."""
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.text}
        return {"role": "tool", "parts": [part]}
    parts: list[dict[str, Any]] = [
        {"type": "uri", "modality": "image", "uri": part.url}
        if isinstance(part, Image)
        else {"type": "text", "content": part.text}
        for part in message.content
    ]
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _arguments(call.arguments)}
        for call in message.tool_calls
    ]
    parts += [{"type": "malformed_tool_call", "content": text} for text in message.malformed]
    return {"role": message.role, "parts": parts}


def _arguments(text: str) -> Any:
    """Return the arguments of a call as an object if its JSON is the same text; otherwise as the text itself."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if json.dumps(value, ensure_ascii=False) == text:
            return value
    return text


def _span(name: str, attributes: Mapping[str, Any], times: tuple[int, int], *, kind: int) -> dict[str, Any]:
    start, end = map(str, times)
    fields = {"name": name, "kind": kind, "startTimeUnixNano": start, "endTimeUnixNano": end}
    return {**fields, "attributes": _pairs(attributes)}


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(each) for each in value]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def _digest_id(size: int, *names: str) -> str:
    return blake2b("\0".join(names).encode(), digest_size=size).hexdigest()
