"""`/v1/responses`: requests and responses of OpenAI's Responses API.

A turn of the model, one message here, is several items in the API: the thought, the text, each call. Consecutive items
of the model in a request are parsed into one turn, so that the turn is recognized as the sampled one.

Functions in a `namespace` of tools have their own names, and a call of one is returned with its namespace.

Note:
    `instructions` are not part of the conversation that `previous_response_id` continues; each request repeats them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, system
from whetstone.chat.api import request_fields
from whetstone.chat.api.openai_chat import (
    MOST_NAMED,
    format_event,
    list_logprobs,
    parse_format,
    parse_tool_choice,
    write_error,
)
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.request_fields import (
    build_tool,
    check_message_order,
    parse_list,
    parse_text,
    refuse_unknown,
    require_object,
    truncate_value,
)
from whetstone.chat.api.request_schemas import FLAT_TOOLS, request_schema
from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError
from whetstone.chat.message import Image, Text

_READ = frozenset({
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature",
    "top_p", "stream", "store", "previous_response_id", "text", "top_logprobs", "include",
})  # fmt: skip
_HARMLESS = frozenset({
    "metadata", "user", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "stream_options", "reasoning", "client_metadata",
})  # fmt: skip
_WHY = {
    "background": "background responses are not supported",
    "conversation": "is not stored; use previous_response_id to continue a response",
    "max_tool_calls": "tools are called by the client",
    "prompt": "stored prompts are not supported",
    "truncation": "a context that is too long is rejected, not truncated",
}
_SAME_AS_NOT_SAID = (("background", False), ("truncation", "disabled"))
_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
"""Supported values of `include`. The second is accepted without effect: thoughts are not encrypted."""


def parse_response_request(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse the body of a `/v1/responses` request whose `input` is the full conversation.

    `StoredResponses.resolve_input` builds that body.

    Raises:
        RefusedError: If a field is invalid, unknown or not supported.
    """
    refuse_unknown({k: v for k, v in body.items() if (k, v) not in _SAME_AS_NOT_SAID}, _READ | _HARMLESS, _WHY)
    for each in parse_list(body.get("include"), "include"):
        if each not in _INCLUDED:
            raise RefusedError(
                f"include: unknown value {truncate_value(each)}; allowed: {', '.join(_INCLUDED)}", param="include"
            )
    declared = [_tool(tool, where) for tool, where, _ in _list_declared_tools(body)]
    must, tools = _choice(body.get("tool_choice"), request_fields.check_unique_tools(declared))
    shape = require_object(body.get("text") or {}, "text")
    refuse_unknown(shape, ("format", "verbosity"), {})
    return CompletionRequest(
        parse_input_messages(body.get("input"), body.get("instructions")),
        tools,
        request_fields.parse_int(body, "max_output_tokens"),
        request_fields.parse_temperature(body),
        request_fields.parse_top_p(body),
        must_call=must,
        one_call=not request_fields.parse_bool(body, "parallel_tool_calls", default=True),
        top_logprobs=request_fields.parse_int(body, "top_logprobs", least=0, most=MOST_NAMED) or 0,
        schema=parse_format(shape.get("format"), "text.format", ""),
    )


def list_items(value: Any) -> list[Any]:
    """Return the items of `input`; a text becomes one user message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return parse_list(value, "input")


def parse_input_messages(value: Any, instructions: Any = None) -> tuple[Message, ...]:
    """Parse the items of `input` into messages.

    Args:
        value: Value of `input`: a text, or a list of items.
        instructions: System message of the request; None: no system message.

    Raises:
        RefusedError: If an item is invalid, or the messages are not in an order to which a model can respond.
    """
    messages: list[Message] = []
    places: list[str] = []
    if instructions is not None:
        messages.append(system(parse_text(instructions, "instructions")))
        places.append("instructions")
    for number, item in enumerate(list_items(value)):
        where = f"input[{number}]"
        message = _message(require_object(item, where), where)
        if message is None:
            continue
        before = messages[-1] if messages else system("")
        if before.role == message.role == "assistant" and (before.tool_calls or message.tool_calls):
            content, calls = (*before.content, *message.content), (*before.tool_calls, *message.tool_calls)
            messages[-1] = Message("assistant", content, calls)
        else:
            messages.append(message)
            places.append(where)
    return check_message_order(messages, places)


def _message(item: Mapping[str, Any], where: str) -> Message | None:
    """Convert an item into a message; None for a reasoning item, which is ignored."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return None
    if kind == "function_call":
        name, arguments, id = (parse_text(item.get(key), f"{where}.{key}") for key in ("name", "arguments", "call_id"))
        return Message("assistant", (), (ToolCall(name, arguments, id),))
    if kind == "function_call_output":
        id = parse_text(item.get("call_id"), f"{where}.call_id")
        return Message("tool", _parts(item.get("output"), f"{where}.output"), tool_call_id=id)
    if kind != "message":
        raise RefusedError(
            f"{where}: unknown item type {truncate_value(kind)}; allowed: message, function_call, "
            "function_call_output, reasoning",
            param=where,
        )
    role = item.get("role")
    content = _parts(item.get("content"), f"{where}.content")
    if role in ("system", "developer"):
        return Message("system", content)
    if role == "user":
        return Message("user", content)
    if role == "assistant":
        return Message("assistant", content)
    raise RefusedError(
        f"{where}.role: must be user, system, developer or assistant, got {truncate_value(role)}", param=where
    )


def _parts(value: Any, where: str) -> tuple[Text | Image, ...]:
    if isinstance(value, str):
        return (Text(value),) if value else ()
    parts: list[Text | Image] = []
    for number, part in enumerate(parse_list(value, where)):
        place = f"{where}[{number}]"
        kind = require_object(part, place).get("type")
        if kind in ("input_text", "output_text", "text"):
            parts.append(Text(parse_text(part.get("text"), f"{place}.text")))
        elif kind == "refusal":
            parts.append(Text(parse_text(part.get("refusal"), f"{place}.refusal")))
        elif kind == "input_image":
            parts.append(Image(parse_text(part.get("image_url"), f"{place}.image_url")))
        else:
            raise RefusedError(
                f"{place}: unknown part type {truncate_value(kind)}; allowed: input_text, output_text, input_image",
                param=place,
            )
    return tuple(parts)


def _list_declared_tools(body: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    """Yield (tool, its field, name of its namespace or an empty string) for each tool of a request.

    The tools of a namespace, such as those of Codex for its sub-agents, follow each other.
    """
    for number, value in enumerate(parse_list(body.get("tools"), "tools")):
        where = f"tools[{number}]"
        tool = require_object(value, where)
        if tool.get("type") != "namespace":
            yield tool, where, ""
            continue
        name = parse_text(tool.get("name"), f"{where}.name")
        for inner, each in enumerate(parse_list(tool.get("tools"), f"{where}.tools")):
            yield each, f"{where}.tools[{inner}]", name


def _tool(value: Any, where: str) -> ToolSpec:
    tool = require_object(value, where)
    if tool.get("type") != "function":
        kind = truncate_value(tool.get("type"))
        raise RefusedError(
            f'{where}.type: must be "function", got {kind}; disable this tool in the client', param=where
        )
    return build_tool(where, tool.get("name"), tool.get("description"), tool.get("parameters"))


def _choice(value: Any, tools: tuple[ToolSpec, ...]) -> tuple[str | None, tuple[ToolSpec, ...]]:
    if not isinstance(value, Mapping) or value.get("type") != "allowed_tools":
        return parse_tool_choice(value, tools)
    allowed = [
        require_object(each, "tool_choice.tools").get("name")
        for each in parse_list(value.get("tools"), "tool_choice.tools")
    ]
    if unknown := [name for name in allowed if name not in [tool.name for tool in tools]]:
        raise RefusedError(
            f'tool_choice names "{truncate_value(unknown[0])}", which is not among the tools', param="tool_choice"
        )
    return parse_tool_choice(value.get("mode"), tuple(tool for tool in tools if tool.name in allowed))


def format_response(
    id: str, model: str, answers: Sequence[CompletionResponse], body: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """Return the response body, an object of type `response` with the items of the only answer."""
    (answer,) = answers
    cut = answer.finish == "length"
    return {
        **_head(id, model, body),
        "status": "incomplete" if cut else "completed",
        "completed_at": None if cut else int(time.time()),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(id, answer, body, tokenizer),
        "usage": _usage(answer),
    }


def _head(id: str, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    def requested(name: str, otherwise: Any) -> Any:
        return otherwise if body.get(name) is None else body[name]

    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": model,
        "output": [],
        "parallel_tool_calls": requested("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": requested("store", True),
        "temperature": requested("temperature", 1.0),
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": requested("tool_choice", "auto"),
        "tools": requested("tools", []),
        "top_p": requested("top_p", 1.0),
        "truncation": "disabled",
        "usage": None,
        "metadata": requested("metadata", {}),
    }


def _usage(answer: CompletionResponse) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": len(answer.ids),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + len(answer.ids),
    }


def _output(id: str, answer: CompletionResponse, body: Mapping[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    is_cut = answer.finish == "length" and not answer.message.tool_calls  # a call that was cut is not among the items
    items: list[dict[str, Any]] = []
    if answer.thought:
        thought = [{"type": "reasoning_text", "text": answer.thought}]
        items.append({"type": "reasoning", "id": f"rs_{id}", "summary": [], "content": thought, "status": "completed"})
    if answer.message.text or not answer.message.tool_calls:
        named = "message.output_text.logprobs" in (body.get("include") or ()) or body.get("top_logprobs")
        logprobs = list_logprobs(answer, tokenizer) if named and answer.ids else []
        part = {**_part(answer.message.text), "logprobs": logprobs}
        items.append(_message_item(id, [part], "incomplete" if is_cut else "completed"))
    namespaces = {tool["name"]: space for tool, _, space in _list_declared_tools(body) if space}
    for place, call in enumerate(answer.message.tool_calls):
        items.append(_call_item(id, place, call, namespaces.get(call.name, "")))
    return items


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_item(id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": status, "content": content}


def _call_item(id: str, place: int, call: ToolCall, namespace: str) -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc_{id}_{place}", "call_id": call.id, "name": call.name}
    item |= {"namespace": namespace} if namespace else {}
    return {**item, "arguments": call.arguments, "status": "completed"}


class ResponseStream:
    """Writer of `response.…` events; see `Stream`."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        self._id, self._model, self._body, self._tokenizer = id, model, body, tokenizer
        self._number = 0
        self._shown: str | None = None
        """Text of the message item so far; None if no message item was opened."""

    def write_start(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """Yield `response.created` and `response.in_progress` with an empty response."""
        head = _head(self._id, self._model, self._body)
        yield self._event("response.created", response=head)
        yield self._event("response.in_progress", response=head)

    def write_text(self, number: int, text: str) -> Iterator[str]:
        """Yield new text as a delta; the first text also opens the message item.

        Streamed text makes the message the first item, because a thought can be shown only before it.
        """
        if self._shown is None:
            yield from self._start_item(0)
        yield self._delta(0, text)

    def write_end(self, answers: Sequence[CompletionResponse]) -> Iterator[str]:
        """Yield the remaining text, the thought, each call, and the complete response."""
        complete = format_response(self._id, self._model, answers, self._body, self._tokenizer)
        items = complete["output"]
        if self._shown is not None:  # an item that was streamed stays the first
            complete["output"] = items = sorted(items, key=lambda item: item["type"] != "message")
        for place, item in enumerate(items):
            yield from getattr(self, f"_{item['type']}")(place, item)
        name = "response.incomplete" if complete["status"] == "incomplete" else "response.completed"
        yield self._event(name, response=complete)

    def write_error(self, error: RefusedError) -> str:
        """Return a `response.failed` event."""
        body = {**_head(self._id, self._model, self._body), "status": "failed"}
        body["error"] = {"code": "server_error", "message": str(error)}
        return self._event("response.failed", response=body)

    def _message(self, place: int, item: Mapping[str, Any]) -> Iterator[str]:
        if self._shown is None:
            yield from self._start_item(place)
        (part,) = item["content"]
        text, streamed = part["text"], self._shown or ""
        if text.startswith(streamed) and text != streamed:
            yield self._delta(place, text[len(streamed) :])
        where = {"item_id": item["id"], "output_index": place, "content_index": 0}
        yield self._event("response.output_text.done", **where, text=text, logprobs=part["logprobs"])
        yield self._event("response.content_part.done", **where, part=part)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _reasoning(self, place: int, item: Mapping[str, Any]) -> Iterator[str]:
        where = {"item_id": item["id"], "output_index": place, "content_index": 0}
        begun = {**item, "content": [], "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=place, item=begun)
        text = item["content"][0]["text"]
        yield self._event("response.reasoning_text.delta", **where, delta=text)
        yield self._event("response.reasoning_text.done", **where, text=text)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _function_call(self, place: int, item: Mapping[str, Any]) -> Iterator[str]:
        where = {"item_id": item["id"], "output_index": place}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=place, item=begun)
        yield self._event("response.function_call_arguments.delta", **where, delta=item["arguments"])
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield self._event("response.function_call_arguments.done", **where, **done)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _start_item(self, place: int) -> Iterator[str]:
        self._shown = ""
        item = _message_item(self._id, [], "in_progress")
        yield self._event("response.output_item.added", output_index=place, item=item)
        where = {"item_id": item["id"], "output_index": place, "content_index": 0}
        yield self._event("response.content_part.added", **where, part=_part(""))

    def _delta(self, place: int, text: str) -> str:
        self._shown = (self._shown or "") + text
        where = {"item_id": f"msg_{self._id}", "output_index": place, "content_index": 0}
        return self._event("response.output_text.delta", **where, delta=text, logprobs=[])

    def _event(self, name: str, /, **values: Any) -> str:
        self._number += 1
        return format_event({"type": name, "sequence_number": self._number - 1, **values}, name)


_REQUEST = request_schema(_READ | _HARMLESS, ("model", "input"), tools=FLAT_TOOLS)
RESPONSES = Wire("resp_", parse_response_request, format_response, ResponseStream, write_error, _REQUEST)
