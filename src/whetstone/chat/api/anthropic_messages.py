"""`/v1/messages`: what a request of Anthropic's Messages API asks for, and an answer in its shape.

Results of calls are blocks of a user's message there and messages of their own here. A thought is told to who asked for
thinking, and is not read again, as nobody's is.

Easy to get wrong: `input` of a call is an object there and the model's own text here. What the model wrote that is no
object is told as `{"unparsed_arguments": text}`, and read back as the text it was, so that the turn is known again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, system
from whetstone.chat.api import fields, shapes
from whetstone.chat.api.asked import Answer, Asked, RefusedError
from whetstone.chat.api.fields import in_order, listed, mapped, refuse_unknown, shortened, strict_json, text_of, tool_of
from whetstone.chat.api.openai_chat import event, format_of, named_choice
from whetstone.chat.api.protocol import Wire
from whetstone.chat.message import Image, Text

_COUNTED = frozenset({
    "model", "messages", "system", "tools", "tool_choice", "thinking", "cache_control", "output_config",
    "output_format",
})  # fmt: skip
_READ = _COUNTED | frozenset({"max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "stream"})
_HARMLESS = frozenset({"metadata", "service_tier", "betas", "inference_geo", "speed"})
_WHY = {
    "container": "this server runs no code",
    "mcp_servers": "tools are called by the client",
    "context_management": "what was said is the client's to cut",
}
_UNPARSED = "unparsed_arguments"
_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def asked_of(body: Mapping[str, Any]) -> Asked:
    """What a request asks for.

    Raises:
        RefusedError: It is none, or asks for what cannot be given.
    """
    refuse_unknown(body, _READ | _HARMLESS, _WHY)
    most = fields.whole(body, "max_tokens")
    if most is None:
        raise RefusedError("max_tokens: Field required", param="max_tokens")
    must, one_call, tools = _choice(body.get("tool_choice"), _tools(body.get("tools")))
    thinks(body)
    return Asked(
        _messages(body),
        tools,
        most,
        fields.temperature(body, 1),
        fields.top_p(body),
        fields.stops_of(body.get("stop_sequences") or [], "stop_sequences"),
        must_call=must,
        one_call=one_call,
        top_k=fields.whole(body, "top_k", least=0, most=2**31 - 1) or 0,
        schema=_format(body),
    )


def counted_of(body: Mapping[str, Any]) -> Asked:
    """What a request of `/v1/messages/count_tokens` would ask for.

    Raises:
        RefusedError: It is none.
    """
    refuse_unknown(body, _COUNTED | _HARMLESS, _WHY)
    _, _, tools = _choice(body.get("tool_choice"), _tools(body.get("tools")))
    return Asked(_messages(body), tools)


def thinks(body: Mapping[str, Any]) -> bool:
    """Whether thoughts are to be told."""
    given = body.get("thinking")
    if given is None:
        return False
    kind = mapped(given, "thinking").get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise RefusedError(f"thinking: enabled, adaptive or disabled, got {shortened(kind)}", param="thinking")
    return bool(kind != "disabled")


def _format(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config = mapped(body.get("output_config") or {}, "output_config")
    refuse_unknown(config, ("format", "effort"), {})
    given = config.get("format") if config.get("format") is not None else body.get("output_format")
    return format_of(given, "output_config.format", "")


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    found: list[Message] = []
    places: list[str] = []
    if body.get("system") is not None:
        told = _content(body["system"], "system")
        found.append(system("\n\n".join(part.text for part in told if isinstance(part, Text))))
        places.append("system")
    for number, item in enumerate(listed(body.get("messages"), "messages")):
        where = f"messages[{number}]"
        said = mapped(item, where)
        role = said.get("role")
        if role not in ("user", "assistant", "system"):
            raise RefusedError(f"{where}.role: user or assistant, got {shortened(role)}", param=where)
        new = _spoken(role, said.get("content"), f"{where}.content")
        found += new
        places += [where] * len(new)
    return in_order(found, places)


def _spoken(role: Any, content: Any, where: str) -> list[Message]:
    """One message of theirs: results of calls first, each a message, then what else was said."""
    if isinstance(content, str):
        return [Message(role, (Text(content),) if content else ())]
    blocks = [(mapped(block, f"{where}[{n}]"), f"{where}[{n}]") for n, block in enumerate(listed(content, where))]
    results = [
        Message(
            "tool",
            _content(block.get("content"), f"{place}.content"),
            tool_call_id=text_of(block.get("tool_use_id"), f"{place}.tool_use_id"),
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


def _content(given: Any, where: str) -> tuple[Text | Image, ...]:
    if isinstance(given, str):
        return (Text(given),) if given else ()
    given = listed(given, where)
    return tuple(_part(mapped(block, f"{where}[{n}]"), f"{where}[{n}]") for n, block in enumerate(given))


def _part(block: Mapping[str, Any], where: str) -> Text | Image:
    kind = block.get("type")
    if kind == "text":
        return Text(text_of(block.get("text"), f"{where}.text"))
    if kind == "image":
        source = mapped(block.get("source"), f"{where}.source")
        if source.get("type") == "url":
            return Image(text_of(source.get("url"), f"{where}.source.url"))
        if source.get("type") == "base64":
            data, media = (text_of(source.get(key), f"{where}.source.{key}") for key in ("data", "media_type"))
            return Image(f"data:{media};base64,{data}")
        raise RefusedError(f"{where}.source: base64 or url, got {shortened(source.get('type'))}", param=where)
    raise RefusedError(
        f"{where}: no block {shortened(kind)} here; there are text, image, tool_use of the assistant's, tool_result of "
        "the user's",
        param=where,
    )


def _call(block: Mapping[str, Any], where: str) -> ToolCall:
    name, id = (text_of(block.get(key), f"{where}.{key}") for key in ("name", "id"))
    given = mapped(block.get("input"), f"{where}.input")
    text = given.get(_UNPARSED)
    written = text if len(given) == 1 and isinstance(text, str) else json.dumps(given, ensure_ascii=False)
    return ToolCall(name, written, id)


def input_of(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call as an object."""
    try:
        read = strict_json(call.arguments)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {_UNPARSED: call.arguments}


def _tools(given: Any) -> tuple[ToolSpec, ...]:
    found = []
    for number, item in enumerate(listed(given, "tools")):
        where = f"tools[{number}]"
        tool = mapped(item, where)
        if tool.get("type") not in (None, "custom"):
            raise RefusedError(f"{where}: of type {shortened(tool['type'])}; there is: custom", param=where)
        found.append(tool_of(where, tool.get("name"), tool.get("description"), tool.get("input_schema")))
    return fields.tools_of(found)


def _choice(given: Any, tools: tuple[ToolSpec, ...]) -> tuple[str | None, bool, tuple[ToolSpec, ...]]:
    """(the tool that has to be called, whether a turn is over behind its first call, the tools that are shown)"""
    if given is None:
        return None, False, tools
    choice = mapped(given, "tool_choice")
    kind, one = choice.get("type"), fields.flag(choice, "disable_parallel_tool_use")
    if kind == "auto":
        return None, one, tools
    if kind == "none":
        return None, False, ()
    if kind == "any":
        if not tools:
            raise RefusedError("tool_choice: any, and there are no tools", param="tool_choice")
        return "", one, tools
    if kind == "tool":
        return named_choice(text_of(choice.get("name"), "tool_choice.name"), tools), one, tools
    raise RefusedError(f"tool_choice: auto, any, tool or none, got {shortened(kind)}", param="tool_choice")


def message(id: str, model: str, answers: Sequence[Answer], body: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The answer as one `message`."""
    (answer,) = answers
    reason, stop = _ended(answer)
    usage = _usage(answer.prompt_tokens, len(answer.ids))
    return {
        **_head(id, model),
        "content": list(_blocks(answer, thinks(body))),
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage,
    }


def _head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "model": model, "content": []}


def _blocks(answer: Answer, thinking: bool) -> Iterator[dict[str, Any]]:
    if thinking and answer.thought:
        yield {"type": "thinking", "thinking": answer.thought, "signature": ""}
    if answer.message.text:
        yield {"type": "text", "text": answer.message.text}
    for call in answer.message.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": input_of(call)}


def _ended(answer: Answer) -> tuple[str, str | None]:
    """(why, at which text)"""
    if answer.finish == "length":
        return "max_tokens", None
    if answer.message.tool_calls:
        return "tool_use", None
    return ("stop_sequence", answer.stopped_by) if answer.stopped_by else ("end_turn", None)


def _usage(read: int, drawn: int) -> dict[str, Any]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": read, **cached, "output_tokens": drawn}


class Events:
    """A stream of `message_…` and `content_block_…` events."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        self._id, self._model, self._thinking = id, model, thinks(body)
        self._place = 0
        """Of the block that is next to be ended."""
        self._shown: str | None = None
        """The text of the block under way; None where there is none."""

    def opened(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """The message as it stands before anything is said."""
        head = {**_head(self._id, self._model), "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**head, "usage": _usage(prompt_tokens, 0)})

    def more(self, number: int, text: str) -> Iterator[str]:
        """Some of what is said."""
        if self._shown is None:
            self._shown = ""
            yield self._begun({"type": "text", "text": ""})
        self._shown += text
        yield self._delta({"type": "text_delta", "text": text})

    def ended(self, answers: Sequence[Answer]) -> Iterator[str]:
        """What was held back, each call, and why it ended."""
        (answer,) = answers
        blocks = list(_blocks(answer, self._thinking))
        if self._shown is not None:  # what was shown is told first
            text, shown = answer.message.text, self._shown
            blocks = [block for block in blocks if block["type"] != "text"]
            if text.startswith(shown) and text != shown:
                yield self._delta({"type": "text_delta", "text": text[len(shown) :]})
            yield self._over()
        for block in blocks:
            yield from self._whole(block)
        reason, stop = _ended(answer)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        yield _event("message_delta", delta=delta, usage=_usage(answer.prompt_tokens, len(answer.ids)))
        yield _event("message_stop")

    def failed(self, error: RefusedError) -> str:
        """What went wrong."""
        return event(error_of(error), "error")

    def _whole(self, block: Mapping[str, Any]) -> Iterator[str]:
        if block["type"] == "tool_use":
            yield self._begun({**block, "input": {}})
            written = json.dumps(block["input"], ensure_ascii=False)
            yield self._delta({"type": "input_json_delta", "partial_json": written})
        else:
            kind = block["type"]
            yield self._begun({**block, kind: ""})
            yield self._delta({"type": f"{kind}_delta", kind: block[kind]})
        yield self._over()

    def _begun(self, block: Mapping[str, Any]) -> str:
        return _event("content_block_start", index=self._place, content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> str:
        return _event("content_block_delta", index=self._place, delta=delta)

    def _over(self) -> str:
        self._place += 1
        return _event("content_block_stop", index=self._place - 1)


def _event(name: str, /, **told: Any) -> str:
    return event({"type": name, **told}, name)


def error_of(error: RefusedError) -> dict[str, Any]:
    """A refusal in the API's shape."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": None}


_OWN = {
    "messages": shapes.BLOCKS,
    "tools": shapes.NAMED_TOOLS,
    "temperature": shapes.number(0, 1),
    "tool_choice": shapes.TYPED_CHOICE,
}
_REQUEST = shapes.request_of(_READ | _HARMLESS, ("model", "messages", "max_tokens"), **_OWN)
MESSAGES = Wire("msg_", asked_of, message, Events, error_of, _REQUEST)
COUNTED = shapes.request_of(_COUNTED | _HARMLESS, ("model", "messages"), **_OWN)
"""A request of `/v1/messages/count_tokens`."""
