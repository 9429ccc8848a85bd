"""`/v1/chat/completions`: what a request of OpenAI's chat API asks for, and an answer in its shape.

Easy to get wrong: a field nobody acts on must not be taken silently. What cannot be given or recorded is refused by
name, what changes nothing is let through.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api.asked import Answer, Asked, RefusedError

_MOST_ANSWERS = 128
_HARMLESS = frozenset({
    "metadata", "model", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store",
    "stream", "stream_options", "user", "verbosity", "reasoning_effort", "modalities", "prompt_cache_retention",
})  # fmt: skip
"""Change nothing of what is drawn here, or are read elsewhere."""
_READ = frozenset({
    "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed",
    "n", "logprobs", "top_logprobs", "logit_bias", "response_format", "frequency_penalty", "presence_penalty",
})  # fmt: skip
_WHY = {
    "best_of": "answers that are drawn and not returned could not be recorded",
    "functions": "is the old name of tools",
    "function_call": "is the old name of tool_choice",
    "audio": "this server speaks no audio",
    "prediction": "what is predicted is not used here",
    "web_search_options": "this server searches nothing",
}


def asked_of(body: Mapping[str, Any]) -> Asked:
    """What a request asks for.

    Raises:
        RefusedError: It is none, or asks for what cannot be given.
    """
    for name in sorted(set(body) - _READ - _HARMLESS):
        if body[name] is not None:
            raise RefusedError(f"{name}: {_WHY.get(name, 'not known here')}", param=name, code="unsupported_parameter")
    tools = tools_of(body.get("tools"))
    must, tools = _choice(body.get("tool_choice"), tools)
    _refuse_format(body.get("response_format"))
    for name in ("frequency_penalty", "presence_penalty"):
        if body.get(name):
            raise RefusedError(f"{name}: drawn tokens would have no log-probs to train on", param=name)
    if body.get("top_logprobs"):
        raise RefusedError(
            "top_logprobs: of drawn tokens alone log-probs are known (logprobs: true)", param="top_logprobs"
        )
    return Asked(
        messages_of(body.get("messages")),
        tools,
        _whole(body, "max_completion_tokens", "max_tokens"),
        _real(body, "temperature", 1.0, 0, 2),
        _real(body, "top_p", 1.0, 0, 1),
        stops_of(body.get("stop")),
        _seed(body.get("seed")),
        _count(body.get("n")),
        must,
        body.get("parallel_tool_calls") is False,
        _bias(body.get("logit_bias")),
    )


def messages_of(given: Any) -> tuple[Message, ...]:
    """The messages of a request, checked.

    Raises:
        RefusedError: They are none, or not in an order in which a model is asked.
    """
    if not isinstance(given, list) or not given:
        raise RefusedError("messages: a list of messages, one or more", param="messages")
    found = []
    for number, said in enumerate(given):
        where = f"messages[{number}]"
        if not isinstance(said, Mapping):
            raise RefusedError(f"{where}: an object", param=where)
        said = {key: value for key, value in said.items() if value is not None}
        if said.get("role") == "developer":
            said["role"] = "system"
        try:
            found.append(Message.from_openai(said))
        except ValueError as error:
            raise RefusedError(f"{where}: {error}", param=where) from None
    if found[-1].role == "assistant":
        raise RefusedError(
            "messages: the last one is the assistant's; what it begins with is not drawn", param="messages"
        )
    waiting: set[str] = set()
    for number, message in enumerate(found):
        if message.role == "tool" and message.tool_call_id not in waiting:
            raise RefusedError(
                f"messages[{number}]: a result of a call that does not stand before it ({message.tool_call_id})",
                param=f"messages[{number}].tool_call_id",
            )
        waiting |= {call.id for call in message.tool_calls}
    return tuple(found)


def tools_of(given: Any) -> tuple[ToolSpec, ...]:
    """The tools of a request.

    Raises:
        RefusedError: One is none, or two have the same name.
    """
    found: list[ToolSpec] = []
    for number, tool in enumerate(given or ()):
        try:
            spec = ToolSpec.from_openai(tool)
        except (ValueError, TypeError) as error:
            raise RefusedError(f"tools[{number}]: {error}", param=f"tools[{number}]") from None
        if spec.name in {other.name for other in found}:
            raise RefusedError(f'tools[{number}]: there is a tool "{spec.name}" already', param=f"tools[{number}]")
        found.append(spec)
    return tuple(found)


def _choice(given: Any, tools: tuple[ToolSpec, ...]) -> tuple[str | None, tuple[ToolSpec, ...]]:
    """(the tool that has to be called, the tools that are shown)"""
    if given in (None, "auto"):
        return None, tools
    if given == "none":
        return None, ()
    if given == "required":
        if not tools:
            raise RefusedError("tool_choice: required, and there are no tools", param="tool_choice")
        return "", tools
    name = given.get("function", given).get("name") if isinstance(given, Mapping) else None
    if not isinstance(name, str):
        raise RefusedError('tool_choice: "none", "auto", "required", or a function by name', param="tool_choice")
    return name, tools


def _refuse_format(given: Any) -> None:
    kind = given.get("type", "text") if isinstance(given, Mapping) else given
    if kind not in (None, "text"):
        raise RefusedError(
            f"response_format: {str(kind)[:40]}: answers are drawn as the model says them; ask for it in a message",
            param="response_format",
            code="unsupported_parameter",
        )


def stops_of(given: Any) -> tuple[str, ...]:
    """The stop strings of a request."""
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(isinstance(stop, str) and stop for stop in stops) or len(stops) > 16:
        raise RefusedError("stop: a text, or up to 16 of them, none of them empty", param="stop")
    return stops


def _whole(body: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = body.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RefusedError(f"{name}: 1 or more, got {str(value)[:40]}", param=name)
            return value
    return None


def _real(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or math.isnan(value):
        raise RefusedError(f"{name}: from {low:g} to {high:g}, got {str(value)[:40]}", param=name)
    return float(value)


def _seed(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise RefusedError("seed: a whole number of 64 bits", param="seed")
    return value % 2**63


def _count(value: Any) -> int:
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_ANSWERS:
        raise RefusedError(f"n: from 1 to {_MOST_ANSWERS}, got {str(value)[:40]}", param="n")
    return value


def _bias(given: Any) -> dict[int, float]:
    if not given:
        return {}
    try:
        found = {int(token): float(value) for token, value in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise RefusedError("logit_bias: an object of token ids and numbers", param="logit_bias") from None
    if not all(abs(value) <= 100 for value in found.values()):
        raise RefusedError("logit_bias: from -100 to 100", param="logit_bias")
    return {token: -math.inf if value <= -100 else value for token, value in found.items()}


def completion(
    id: str, model: str, answers: Sequence[Answer], body: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """The answers as one `chat.completion`."""
    choices = [
        {
            "index": number,
            "message": said(answer),
            "logprobs": _logprobs(answer, tokenizer) if body.get("logprobs") else None,
            "finish_reason": answer.finish,
        }
        for number, answer in enumerate(answers)
    ]
    head = {"id": id, "object": "chat.completion", "created": int(time.time()), "model": model}
    return {**head, "choices": choices, "usage": usage(answers)}


def said(answer: Answer) -> dict[str, Any]:
    """The message as the API writes it."""
    text = answer.message.text
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if answer.message.tool_calls else "")}
    message["refusal"] = None
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.message.tool_calls:
        message["tool_calls"] = answer.message.to_openai()["tool_calls"]
    return message


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Tokens read and drawn."""
    prompt, drawn = answers[0].prompt_tokens, sum(len(answer.ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def _logprobs(answer: Answer, tokenizer: Any) -> dict[str, Any]:
    content = []
    for place in range(len(answer.ids)):
        text = answer.piece(tokenizer, place)
        logprob = answer.logprobs[place]
        content.append({
            "token": text,
            "logprob": max(logprob, -9999.0) if not math.isnan(logprob) else -9999.0,
            "bytes": list(text.encode()),
            "top_logprobs": [],
        })  # fmt: skip
    return {"content": content, "refusal": None}


class Chunks:
    """A stream of `chat.completion.chunk` events, as lines of text."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any]) -> None:
        options = body.get("stream_options") or {}
        self._usage = bool(isinstance(options, Mapping) and options.get("include_usage"))
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._body = body
        self._shown: dict[int, str] = {}

    def opened(self, count: int) -> Iterator[str]:
        """The roles of all choices."""
        for number in range(count):
            self._shown[number] = ""
            yield self._event(number, {"role": "assistant", "content": ""})

    def more(self, number: int, text: str) -> str:
        """Some text of a choice."""
        self._shown[number] += text
        return self._event(number, {"content": text})

    def ended(self, answers: Sequence[Answer], tokenizer: Any) -> Iterator[str]:
        """What was held back of each choice, why it ended, what it took."""
        for number, answer in enumerate(answers):
            text, shown = answer.message.text, self._shown[number]
            if answer.thought:
                yield self._event(number, {"reasoning_content": answer.thought})
            if text.startswith(shown) and text != shown:
                yield self._event(number, {"content": text[len(shown) :]})
            for place, call in enumerate(answer.message.tool_calls):
                function = {"name": call.name, "arguments": call.arguments}
                told = {"index": place, "id": call.id, "type": "function", "function": function}
                yield self._event(number, {"tool_calls": [told]})
            more = {"logprobs": _logprobs(answer, tokenizer)} if self._body.get("logprobs") else {}
            yield self._event(number, {}, finish_reason=answer.finish, **more)
        if self._usage:
            yield event({**self._head, "choices": [], "usage": usage(answers)})
        yield "data: [DONE]\n\n"

    def _event(self, number: int, delta: Mapping[str, Any], **more: Any) -> str:
        choice = {"index": number, "delta": dict(delta), "logprobs": None, "finish_reason": None, **more}
        return event({**self._head, "choices": [choice], **({"usage": None} if self._usage else {})})


def event(told: Mapping[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(told, ensure_ascii=False)}\n\n"


def error_of(error: RefusedError) -> dict[str, Any]:
    """A refusal in the API's shape."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}
