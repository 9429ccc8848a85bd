"""`/v1/messages`: requests and responses of Anthropic's Messages API.

Tool results are blocks of a user message in the API, and separate messages here. A thought is returned if the request
enables thinking. Thoughts in requests are ignored, as in all APIs.

Note:
    `input` of a call is an object in the API and the model's own text here. Text that is not an object is returned as
    `{"unparsed_arguments": text}`. If the client sends that object back, it is parsed into the original text, so that
    the turn is recognized as the sampled one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, system
from whetstone.chat.api import request_fields, request_schemas
from whetstone.chat.api.openai_chat import check_tool_name, format_event, parse_format
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.request_fields import (
    build_tool,
    check_message_order,
    parse_list,
    parse_text,
    refuse_unknown,
    require_object,
    strict_json,
    truncate_value,
)
from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError
from whetstone.chat.message import Image, Text

_COUNTED = frozenset({
    "model", "messages", "system", "tools", "tool_choice", "thinking", "cache_control", "output_config",
    "output_format", "context_management",
})  # fmt: skip
_READ = _COUNTED | frozenset({"max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "stream"})
_HARMLESS = frozenset({"metadata", "service_tier", "betas", "inference_geo", "speed"})
_WHY = {
    "container": "this server runs no code",
    "mcp_servers": "tools are called by the client",
}
_UNPARSED = "unparsed_arguments"
_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def parse_anthropic_request(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse the body of a `/v1/messages` request.

    Raises:
        RefusedError: If `max_tokens` is missing, or a field is invalid, unknown or not supported.
    """
    refuse_unknown(body, _READ | _HARMLESS, _WHY)
    most = request_fields.parse_int(body, "max_tokens")
    if most is None:
        raise RefusedError("max_tokens: Field required", param="max_tokens")
    must, one_call, tools = _choice(body.get("tool_choice"), _tools(body.get("tools")))
    wants_thinking(body)
    _refuse_context_edits(body)
    return CompletionRequest(
        _messages(body),
        tools,
        most,
        request_fields.parse_temperature(body, 1),
        request_fields.parse_top_p(body),
        request_fields.parse_stops(body.get("stop_sequences") or [], "stop_sequences"),
        must_call=must,
        one_call=one_call,
        top_k=request_fields.parse_int(body, "top_k", least=0, most=2**31 - 1) or 0,
        schema=_format(body),
    )


def parse_count_request(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse the body of a `/v1/messages/count_tokens` request.

    Raises:
        RefusedError: If a field is invalid, unknown or not supported.
    """
    refuse_unknown(body, _COUNTED | _HARMLESS, _WHY)
    _, _, tools = _choice(body.get("tool_choice"), _tools(body.get("tools")))
    _refuse_context_edits(body)
    return CompletionRequest(_messages(body), tools)


def wants_thinking(body: Mapping[str, Any]) -> bool:
    """Return whether a request asks for thoughts in the response (`thinking` is `enabled` or `adaptive`).

    Raises:
        RefusedError: If `thinking` is invalid.
    """
    value = body.get("thinking")
    if value is None:
        return False
    kind = require_object(value, "thinking").get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise RefusedError(
            f"thinking.type: must be enabled, adaptive or disabled, got {truncate_value(kind)}", param="thinking"
        )
    return bool(kind != "disabled")


def _refuse_context_edits(body: Mapping[str, Any]) -> None:
    """Refuse edits of the context that change messages.

    `clear_thinking_…` is accepted, since thoughts in requests are ignored anyway.
    """
    management = require_object(body.get("context_management") or {}, "context_management")
    for number, edit in enumerate(parse_list(management.get("edits"), "context_management.edits")):
        where = f"context_management.edits[{number}]"
        kind = parse_text(require_object(edit, where).get("type"), f"{where}.type")
        if not kind.startswith("clear_thinking_"):
            raise RefusedError(
                f"{where}: {truncate_value(kind)} is not supported; remove it, the client manages its context",
                param="context_management",
            )


def _format(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config = require_object(body.get("output_config") or {}, "output_config")
    refuse_unknown(config, ("format", "effort"), {})
    value = config.get("format") if config.get("format") is not None else body.get("output_format")
    return parse_format(value, "output_config.format", "")


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    places: list[str] = []
    if body.get("system") is not None:
        parts = _content(body["system"], "system")
        messages.append(system("\n\n".join(part.text for part in parts if isinstance(part, Text))))
        places.append("system")
    for number, item in enumerate(parse_list(body.get("messages"), "messages")):
        where = f"messages[{number}]"
        entry = require_object(item, where)
        role = entry.get("role")
        if role not in ("user", "assistant", "system"):
            raise RefusedError(f"{where}.role: must be user or assistant, got {truncate_value(role)}", param=where)
        new = _spoken(role, entry.get("content"), f"{where}.content")
        messages += new
        places += [where] * len(new)
    return check_message_order(messages, places)


def _spoken(role: Any, content: Any, where: str) -> list[Message]:
    """Convert a message of the API into messages: first one `tool` message per result, then text, images and calls."""
    if isinstance(content, str):
        return [Message(role, (Text(content),) if content else ())]
    blocks = [
        (require_object(block, f"{where}[{n}]"), f"{where}[{n}]") for n, block in enumerate(parse_list(content, where))
    ]
    results = [
        Message(
            "tool",
            _content(block.get("content"), f"{place}.content"),
            tool_call_id=parse_text(block.get("tool_use_id"), f"{place}.tool_use_id"),
        )
        for block, place in blocks
        if role == "user" and block.get("type") == "tool_result"
    ]
    calls = tuple(
        _call(block, place) for block, place in blocks if role == "assistant" and block.get("type") == "tool_use"
    )
    known = {"user": ("tool_result",), "assistant": ("tool_use", "thinking", "redacted_thinking")}.get(role, ())
    rest = [_part(block, place) for block, place in blocks if block.get("type") not in known]
    return results if results and not rest else [*results, Message(role, tuple(rest), calls)]


def _content(value: Any, where: str) -> tuple[Text | Image, ...]:
    if isinstance(value, str):
        return (Text(value),) if value else ()
    value = parse_list(value, where)
    return tuple(_part(require_object(block, f"{where}[{n}]"), f"{where}[{n}]") for n, block in enumerate(value))


def _part(block: Mapping[str, Any], where: str) -> Text | Image:
    kind = block.get("type")
    if kind == "text":
        return Text(parse_text(block.get("text"), f"{where}.text"))
    if kind == "image":
        source = require_object(block.get("source"), f"{where}.source")
        if source.get("type") == "url":
            return Image(parse_text(source.get("url"), f"{where}.source.url"))
        if source.get("type") == "base64":
            data, media = (parse_text(source.get(key), f"{where}.source.{key}") for key in ("data", "media_type"))
            return Image(f"data:{media};base64,{data}")
        raise RefusedError(
            f"{where}.source.type: must be base64 or url, got {truncate_value(source.get('type'))}", param=where
        )
    raise RefusedError(
        f"{where}: unknown block type {truncate_value(kind)}; allowed: text, image, tool_use (assistant), "
        "tool_result (user)",
        param=where,
    )


def _call(block: Mapping[str, Any], where: str) -> ToolCall:
    name, id = (parse_text(block.get(key), f"{where}.{key}") for key in ("name", "id"))
    arguments = require_object(block.get("input"), f"{where}.input")
    text = arguments.get(_UNPARSED)
    written = text if len(arguments) == 1 and isinstance(text, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name, written, id)


def parse_input(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object.

    Text that is not a JSON object is wrapped; see the module's note.
    """
    try:
        read = strict_json(call.arguments)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {_UNPARSED: call.arguments}


def _tools(value: Any) -> tuple[ToolSpec, ...]:
    tools = []
    for number, item in enumerate(parse_list(value, "tools")):
        where = f"tools[{number}]"
        tool = require_object(item, where)
        if tool.get("type") not in (None, "custom"):
            raise RefusedError(
                f'{where}.type: must be "custom" or absent, got {truncate_value(tool["type"])}', param=where
            )
        tools.append(build_tool(where, tool.get("name"), tool.get("description"), tool.get("input_schema")))
    return request_fields.check_unique_tools(tools)


def _choice(value: Any, tools: tuple[ToolSpec, ...]) -> tuple[str | None, bool, tuple[ToolSpec, ...]]:
    """Parse `tool_choice`.

    Returns:
        (name of the required tool, empty for any, None if no call is required; whether a turn ends after its first
        call; tools that the model sees).
    """
    if value is None:
        return None, False, tools
    choice = require_object(value, "tool_choice")
    kind, one = choice.get("type"), request_fields.parse_bool(choice, "disable_parallel_tool_use")
    if kind == "auto":
        return None, one, tools
    if kind == "none":
        return None, False, ()
    if kind == "any":
        if not tools:
            raise RefusedError(
                'tool_choice: "any" needs tools, and the request has none; add tools, or use "auto"',
                param="tool_choice",
            )
        return "", one, tools
    if kind == "tool":
        return check_tool_name(parse_text(choice.get("name"), "tool_choice.name"), tools), one, tools
    raise RefusedError(
        f"tool_choice.type: must be auto, any, tool or none, got {truncate_value(kind)}", param="tool_choice"
    )


def format_anthropic_message(
    id: str, model: str, answers: Sequence[CompletionResponse], body: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """Return the response body, an object of type `message` with the blocks of the only answer."""
    (answer,) = answers
    reason, stop = _ended(answer)
    usage = _usage(answer.prompt_tokens, len(answer.ids))
    return {
        **_head(id, model),
        "content": list(_blocks(answer, wants_thinking(body))),
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage,
    }


def _head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "model": model, "content": []}


def _blocks(answer: CompletionResponse, thinking: bool) -> Iterator[dict[str, Any]]:
    if thinking and answer.thought:
        yield {"type": "thinking", "thinking": answer.thought, "signature": ""}
    if answer.message.text:
        yield {"type": "text", "text": answer.message.text}
    for call in answer.message.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": parse_input(call)}


def _ended(answer: CompletionResponse) -> tuple[str, str | None]:
    """Return (stop reason, stop text that ended the answer or None)."""
    if answer.finish == "length":
        return "max_tokens", None
    if answer.message.tool_calls:
        return "tool_use", None
    return ("stop_sequence", answer.stopped_by) if answer.stopped_by else ("end_turn", None)


def _usage(read: int, drawn: int) -> dict[str, Any]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": read, **cached, "output_tokens": drawn}


class MessageStream:
    """Writer of `message_…` and `content_block_…` events; see `Stream`."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        self._id, self._model, self._thinking = id, model, wants_thinking(body)
        self._place = 0
        """Index of the current block, or of the next one if none is open."""
        self._shown: str | None = None
        """Text of the open text block so far; None if no text was streamed."""

    def write_start(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """Yield `message_start` with an empty message."""
        head = {**_head(self._id, self._model), "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**head, "usage": _usage(prompt_tokens, 0)})

    def write_text(self, number: int, text: str) -> Iterator[str]:
        """Yield new text as a delta; the first text also opens a text block."""
        if self._shown is None:
            self._shown = ""
            yield self._start_block({"type": "text", "text": ""})
        self._shown += text
        yield self._delta({"type": "text_delta", "text": text})

    def write_end(self, answers: Sequence[CompletionResponse]) -> Iterator[str]:
        """Yield the remaining text, a block for the thought and for each call, and the stop reason with the usage."""
        (answer,) = answers
        blocks = list(_blocks(answer, self._thinking))
        if self._shown is not None:  # text that was streamed is first
            text, streamed = answer.message.text, self._shown
            blocks = [block for block in blocks if block["type"] != "text"]
            if text.startswith(streamed) and text != streamed:
                yield self._delta({"type": "text_delta", "text": text[len(streamed) :]})
            yield self._stop_block()
        for block in blocks:
            yield from self._full_block(block)
        reason, stop = _ended(answer)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        yield _event("message_delta", delta=delta, usage=_usage(answer.prompt_tokens, len(answer.ids)))
        yield _event("message_stop")

    def write_error(self, error: RefusedError) -> str:
        """Return an `error` event in Anthropic's format."""
        return format_event(write_anthropic_error(error), "error")

    def _full_block(self, block: Mapping[str, Any]) -> Iterator[str]:
        if block["type"] == "tool_use":
            yield self._start_block({**block, "input": {}})
            written = json.dumps(block["input"], ensure_ascii=False)
            yield self._delta({"type": "input_json_delta", "partial_json": written})
        else:
            kind = block["type"]
            yield self._start_block({**block, kind: ""})
            yield self._delta({"type": f"{kind}_delta", kind: block[kind]})
        yield self._stop_block()

    def _start_block(self, block: Mapping[str, Any]) -> str:
        return _event("content_block_start", index=self._place, content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> str:
        return _event("content_block_delta", index=self._place, delta=delta)

    def _stop_block(self) -> str:
        self._place += 1
        return _event("content_block_stop", index=self._place - 1)


def _event(name: str, /, **values: Any) -> str:
    return format_event({"type": name, **values}, name)


def write_anthropic_error(error: RefusedError) -> dict[str, Any]:
    """Return the response body of an error in Anthropic's format."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": None}


_OWN = {
    "messages": request_schemas.BLOCKS,
    "tools": request_schemas.NAMED_TOOLS,
    "temperature": request_schemas.number_schema(0, 1),
    "tool_choice": request_schemas.TYPED_CHOICE,
}
_REQUEST = request_schemas.request_schema(_READ | _HARMLESS, ("model", "messages", "max_tokens"), **_OWN)
MESSAGES = Wire(
    "msg_", parse_anthropic_request, format_anthropic_message, MessageStream, write_anthropic_error, _REQUEST
)
COUNTED = request_schemas.request_schema(_COUNTED | _HARMLESS, ("model", "messages"), **_OWN)
"""JSON Schema of a `/v1/messages/count_tokens` request."""
