"""`/v1/chat/completions`: requests and responses of OpenAI's chat API.

Note:
    A field without effect must not be accepted silently. Fields that cannot be supported or recorded are rejected by
    name; fields that change nothing are accepted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api import request_fields
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.request_fields import (
    build_tool,
    check_message_order,
    parse_list,
    refuse_unknown,
    require_object,
    truncate_value,
)
from whetstone.chat.api.request_schemas import request_schema
from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError, json_number
from whetstone.chat.token_bytes import TokenBytes

MOST_NAMED = 20
"""Maximum value of `top_logprobs`: number of most likely tokens per position."""
_HARMLESS = frozenset({
    "metadata", "model", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store",
    "stream", "stream_options", "user", "verbosity", "reasoning_effort", "modalities", "prompt_cache_retention",
})  # fmt: skip
"""Accepted fields that do not affect sampling, or that the server reads elsewhere."""
_READ = frozenset({
    "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed",
    "n", "logprobs", "top_logprobs", "logit_bias", "response_format", "frequency_penalty", "presence_penalty",
})  # fmt: skip
_WHY = {
    "best_of": "answers that are sampled and not returned cannot be recorded",
    "functions": "is the old name of tools",
    "function_call": "is the old name of tool_choice",
    "audio": "this server has no audio output",
    "prediction": "predicted outputs are not supported",
    "web_search_options": "this server has no web search",
}


def parse_chat_request(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse the body of a `/v1/chat/completions` request.

    Raises:
        RefusedError: If a field is invalid, unknown or not supported.
    """
    refuse_unknown(body, _READ | _HARMLESS, _WHY)
    tools = request_fields.check_unique_tools(
        [_tool(tool, number) for number, tool in enumerate(parse_list(body.get("tools"), "tools"))]
    )
    must, tools = parse_tool_choice(body.get("tool_choice"), tools)
    request_fields.refuse_penalties(body)
    named = request_fields.parse_int(body, "top_logprobs", least=0, most=MOST_NAMED) or 0
    if named and not request_fields.parse_bool(body, "logprobs"):
        raise RefusedError(
            "top_logprobs: requires `logprobs: true`; set it, or remove top_logprobs", param="top_logprobs"
        )
    return CompletionRequest(
        parse_chat_messages(body.get("messages")),
        tools,
        request_fields.parse_int(body, "max_completion_tokens", "max_tokens"),
        request_fields.parse_temperature(body),
        request_fields.parse_top_p(body),
        request_fields.parse_stops(body.get("stop")),
        request_fields.parse_sampling_seed(body.get("seed")),
        request_fields.parse_answer_count(body),
        must,
        not request_fields.parse_bool(body, "parallel_tool_calls", default=True),
        request_fields.parse_logit_bias(body.get("logit_bias")),
        top_logprobs=named,
        schema=parse_format(body.get("response_format"), "response_format", "json_schema"),
    )


def parse_chat_messages(conversation: Any) -> tuple[Message, ...]:
    """Parse the `messages` of a request.

    Null fields are ignored, and `developer` becomes `system`.

    Raises:
        RefusedError: If a message is invalid, or the messages are not in an order to which a model can respond.
    """
    if not isinstance(conversation, list) or not conversation:
        raise RefusedError(
            f"messages: expected a list of at least one message, got {truncate_value(conversation)}", param="messages"
        )
    messages = []
    for number, entry in enumerate(conversation):
        where = f"messages[{number}]"
        if not isinstance(entry, Mapping):
            raise RefusedError(f"{where}: expected an object, got {truncate_value(entry)}", param=where)
        entry = {key: value for key, value in entry.items() if value is not None}
        if entry.get("role") == "developer":
            entry["role"] = "system"
        try:
            messages.append(Message.from_openai(entry))
        except ValueError as error:
            raise RefusedError(f"{where}: {error}", param=where) from None
    return check_message_order(messages, [f"messages[{number}]" for number in range(len(messages))])


def _tool(value: Any, number: int) -> ToolSpec:
    where = f"tools[{number}]"
    tool = require_object(value, where)
    if tool.get("type", "function") != "function":
        raise RefusedError(f'{where}.type: must be "function", got {truncate_value(tool["type"])}', param=where)
    inner = require_object(tool.get("function", tool), where)
    return build_tool(where, inner.get("name"), inner.get("description"), inner.get("parameters"))


def parse_tool_choice(value: Any, tools: tuple[ToolSpec, ...]) -> tuple[str | None, tuple[ToolSpec, ...]]:
    """Parse `tool_choice` of OpenAI's APIs.

    Args:
        value: Value of the field.
        tools: Tools of the request.

    Returns:
        (name of the required tool, empty for any tool, None if no call is required; tools that the model sees).

    Raises:
        RefusedError: If the choice is invalid, or names a tool that the request does not define.
    """
    if value in (None, "auto"):
        return None, tools
    if value == "none":
        return None, ()
    if value == "required":
        if not tools:
            raise RefusedError(
                'tool_choice: "required" needs tools, and the request has none; add tools, or use "auto"',
                param="tool_choice",
            )
        return "", tools
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise RefusedError(
            f'tool_choice: must be "none", "auto", "required", or a function by name, got {truncate_value(value)}',
            param="tool_choice",
        )
    return check_tool_name(name, tools), tools


def check_tool_name(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return the name of a required tool, after a check that the request defines it.

    Raises:
        RefusedError: If the request defines no tool of this name.
    """
    if name not in {tool.name for tool in tools}:
        raise RefusedError(
            f'tool_choice names "{truncate_value(name)}", which is not among the tools', param="tool_choice"
        )
    return name


def parse_format(value: Any, name: str, inside: str) -> Mapping[str, Any] | None:
    """Parse a response format and return the JSON Schema of the answer; None: unrestricted.

    `json_object` gives the schema of any object.

    Args:
        value: Value of the field; None or `{"type": "text"}` does not restrict the answer.
        name: Name of the field, for errors.
        inside: Key of the nested object that holds `schema`; empty if the format itself holds it.

    Raises:
        RefusedError: If the type is unknown, or a `json_schema` has no schema.
    """
    kind = require_object(value, name).get("type", "text") if value is not None else "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        holder = require_object(value.get(inside), f"{name}.{inside}") if inside else value
        schema = holder.get("schema")
        if isinstance(schema, Mapping):
            return schema
        raise RefusedError(f"{name}: the type json_schema requires `schema`", param=name)
    raise RefusedError(f"{name}.type: must be text, json_object or json_schema, got {truncate_value(kind)}", param=name)


def format_chat_completion(
    id: str, model: str, answers: Sequence[CompletionResponse], body: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """Return the response body, an object of type `chat.completion` with one choice per answer."""
    choices = [
        {
            "index": number,
            "message": message_to_json(answer),
            "logprobs": _logprobs(answer, tokenizer) if body.get("logprobs") and answer.ids else None,
            "finish_reason": answer.finish,
        }
        for number, answer in enumerate(answers)
    ]
    head = {"id": id, "object": "chat.completion", "created": int(time.time()), "model": model}
    return {**head, "choices": choices, "usage": count_usage(answers)}


def message_to_json(answer: CompletionResponse) -> dict[str, Any]:
    """Return the message of an answer in OpenAI's format, with the thought as `reasoning_content`."""
    text = answer.message.text
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if answer.message.tool_calls else "")}
    message["refusal"] = None
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.message.tool_calls:
        message["tool_calls"] = answer.message.to_openai()["tool_calls"]
    return message


def count_usage(answers: Sequence[CompletionResponse]) -> dict[str, Any]:
    """Return the `usage` object: tokens of the prompt, sampled tokens of all answers, and their sum."""
    prompt, drawn = answers[0].prompt_tokens, sum(len(answer.ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def list_logprobs(answer: CompletionResponse, tokenizer: Any) -> list[dict[str, Any]]:
    """Return text, log-prob and bytes of each token of an answer, with the most likely tokens if requested.

    The concatenated bytes of all tokens are those of the text. `token` contains U+FFFD for a part of a character.
    """
    vocabulary, entries = TokenBytes(tokenizer), []
    for place, piece in enumerate(vocabulary.split_tokens(answer.ids)):
        tops = answer.tops[place].items() if answer.tops else ()
        likeliest = [_named(vocabulary.decode_token(token, is_first=place == 0), logprob) for token, logprob in tops]
        entries.append({**_named(piece, answer.logprobs[place]), "top_logprobs": likeliest})
    return entries


def _named(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": piece.decode(errors="replace"), "logprob": json_number(logprob), "bytes": list(piece)}


def _logprobs(answer: CompletionResponse, tokenizer: Any) -> dict[str, Any]:
    return {"content": list_logprobs(answer, tokenizer), "refusal": None}


class ChatStream:
    """Writer of `chat.completion.chunk` events; see `Stream`."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        options = body.get("stream_options") or {}
        self._usage = bool(isinstance(options, Mapping) and options.get("include_usage"))
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._logprobs, self._tokenizer = bool(body.get("logprobs")), tokenizer
        self._shown: dict[int, str] = {}

    def write_start(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """Yield one event per choice with the role `assistant`."""
        for number in range(count):
            self._shown[number] = ""
            yield self._event(number, {"role": "assistant", "content": ""})

    def write_text(self, number: int, text: str) -> Iterator[str]:
        """Yield an event with new text of a choice."""
        self._shown[number] += text
        yield self._event(number, {"content": text})

    def write_end(self, answers: Sequence[CompletionResponse]) -> Iterator[str]:
        """Yield thought, remaining text, calls and finish reason of each choice, then the usage if requested."""
        for number, answer in enumerate(answers):
            text, streamed = answer.message.text, self._shown[number]
            if answer.thought:
                yield self._event(number, {"reasoning_content": answer.thought})
            if text.startswith(streamed) and text != streamed:
                yield self._event(number, {"content": text[len(streamed) :]})
            for place, call in enumerate(answer.message.tool_calls):
                function = {"name": call.name, "arguments": call.arguments}
                called = {"index": place, "id": call.id, "type": "function", "function": function}
                yield self._event(number, {"tool_calls": [called]})
            has_logprobs = self._logprobs and bool(answer.ids)
            more = {"logprobs": _logprobs(answer, self._tokenizer)} if has_logprobs else {}
            yield self._event(number, {}, finish_reason=answer.finish, **more)
        if self._usage:
            yield format_event({**self._head, "choices": [], "usage": count_usage(answers)})
        yield "data: [DONE]\n\n"

    def write_error(self, error: RefusedError) -> str:
        """Return an event with the error in OpenAI's format."""
        return format_event(write_error(error))

    def _event(self, number: int, delta: Mapping[str, Any], **more: Any) -> str:
        choice = {"index": number, "delta": dict(delta), "logprobs": None, "finish_reason": None, **more}
        return format_event({**self._head, "choices": [choice], **({"usage": None} if self._usage else {})})


def format_event(data: Mapping[str, Any], name: str = "") -> str:
    """Return a server-sent event with JSON data.

    Args:
        data: Data of the event.
        name: Event name, for APIs that name events; empty: no name.
    """
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"


def write_error(error: RefusedError) -> dict[str, Any]:
    """Return the response body of an error in OpenAI's format."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


_REQUEST = request_schema(_READ | _HARMLESS, ("model", "messages"))
CHAT = Wire("chatcmpl-", parse_chat_request, format_chat_completion, ChatStream, write_error, _REQUEST)
