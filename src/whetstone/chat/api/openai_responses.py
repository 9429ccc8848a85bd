"""`/v1/responses`: what a request of OpenAI's Responses API asks for, and an answer in its shape.

A turn of the model, one message here, is several items there: what it thought, what it said, each call. Items that
stand behind one another and are the model's are read back as one turn, so that it is known again.

Easy to get wrong: `instructions` are no part of what `previous_response_id` goes on from; they are said anew each time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, system
from whetstone.chat.api import fields
from whetstone.chat.api.asked import Answer, Asked, RefusedError
from whetstone.chat.api.fields import in_order, listed, mapped, refuse_unknown, shortened, text_of, tool_of
from whetstone.chat.api.openai_chat import MOST_NAMED, choice_of, error_of, event, format_of, logprobs_of
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.shapes import FLAT_TOOLS, request_of
from whetstone.chat.message import Image, Text

_READ = frozenset({
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature",
    "top_p", "stream", "store", "previous_response_id", "text", "top_logprobs", "include",
})  # fmt: skip
_HARMLESS = frozenset({
    "metadata", "user", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "stream_options", "reasoning",
})  # fmt: skip
_WHY = {
    "background": "an answer is waited for here",
    "conversation": "is not kept here; previous_response_id goes on from a response",
    "max_tool_calls": "tools are called by the client, which can count",
    "prompt": "no templates of prompts are kept here",
    "truncation": "what does not fit is refused, not cut",
}
_SAME_AS_NOT_SAID = (("background", False), ("truncation", "disabled"))
_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
"""The second is taken: there is nothing encrypted about a thought here."""


def asked_of(body: Mapping[str, Any]) -> Asked:
    """What a request asks for; `input` is all that was said, see `StoredResponses.resolved`.

    Raises:
        RefusedError: It is none, or asks for what cannot be given.
    """
    refuse_unknown({k: v for k, v in body.items() if (k, v) not in _SAME_AS_NOT_SAID}, _READ | _HARMLESS, _WHY)
    for each in listed(body.get("include"), "include"):
        if each not in _INCLUDED:
            raise RefusedError(f"include: no {shortened(each)} here; there is {', '.join(_INCLUDED)}", param="include")
    given = enumerate(listed(body.get("tools"), "tools"))
    must, tools = _choice(body.get("tool_choice"), fields.tools_of([_tool(tool, number) for number, tool in given]))
    shape = mapped(body.get("text") or {}, "text")
    refuse_unknown(shape, ("format", "verbosity"), {})
    return Asked(
        messages_of(body.get("input"), body.get("instructions")),
        tools,
        fields.whole(body, "max_output_tokens"),
        fields.temperature(body),
        fields.top_p(body),
        must_call=must,
        one_call=not fields.flag(body, "parallel_tool_calls", default=True),
        top_logprobs=fields.whole(body, "top_logprobs", least=0, most=MOST_NAMED) or 0,
        schema=format_of(shape.get("format"), "text.format", ""),
    )


def items_of(given: Any) -> list[Any]:
    """The items of an input; a text is a message of the user's."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return listed(given, "input")


def messages_of(given: Any, instructions: Any = None) -> tuple[Message, ...]:
    """The messages of an input, checked.

    Raises:
        RefusedError: They are none, or not in an order in which a model is asked.
    """
    found: list[Message] = []
    places: list[str] = []
    if instructions is not None:
        found.append(system(text_of(instructions, "instructions")))
        places.append("instructions")
    for number, item in enumerate(items_of(given)):
        where = f"input[{number}]"
        message = _message(mapped(item, where), where)
        if message is None:
            continue
        before = found[-1] if found else system("")
        if before.role == message.role == "assistant" and (before.tool_calls or message.tool_calls):
            said, calls = (*before.content, *message.content), (*before.tool_calls, *message.tool_calls)
            found[-1] = Message("assistant", said, calls)
        else:
            found.append(message)
            places.append(where)
    return in_order(found, places)


def _message(item: Mapping[str, Any], where: str) -> Message | None:
    """An item as a message; None where it is a thought, which nobody reads again."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return None
    if kind == "function_call":
        name, arguments, id = (text_of(item.get(key), f"{where}.{key}") for key in ("name", "arguments", "call_id"))
        return Message("assistant", (), (ToolCall(name, arguments, id),))
    if kind == "function_call_output":
        id = text_of(item.get("call_id"), f"{where}.call_id")
        return Message("tool", _parts(item.get("output"), f"{where}.output"), tool_call_id=id)
    if kind != "message":
        raise RefusedError(
            f"{where}: no item {shortened(kind)} here; there are message, function_call, function_call_output, "
            "reasoning",
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
    raise RefusedError(f"{where}.role: user, system, developer or assistant, got {shortened(role)}", param=where)


def _parts(given: Any, where: str) -> tuple[Text | Image, ...]:
    if isinstance(given, str):
        return (Text(given),) if given else ()
    found: list[Text | Image] = []
    for number, part in enumerate(listed(given, where)):
        place = f"{where}[{number}]"
        kind = mapped(part, place).get("type")
        if kind in ("input_text", "output_text", "text"):
            found.append(Text(text_of(part.get("text"), f"{place}.text")))
        elif kind == "refusal":
            found.append(Text(text_of(part.get("refusal"), f"{place}.refusal")))
        elif kind == "input_image":
            found.append(Image(text_of(part.get("image_url"), f"{place}.image_url")))
        else:
            raise RefusedError(
                f"{place}: no part {shortened(kind)} here; there are input_text, output_text, input_image", param=place
            )
    return tuple(found)


def _tool(given: Any, number: int) -> ToolSpec:
    where = f"tools[{number}]"
    tool = mapped(given, where)
    if tool.get("type") != "function":
        raise RefusedError(f"{where}: of type {shortened(tool.get('type'))}; there is: function", param=where)
    return tool_of(where, tool.get("name"), tool.get("description"), tool.get("parameters"))


def _choice(given: Any, tools: tuple[ToolSpec, ...]) -> tuple[str | None, tuple[ToolSpec, ...]]:
    if not isinstance(given, Mapping) or given.get("type") != "allowed_tools":
        return choice_of(given, tools)
    allowed = [
        mapped(each, "tool_choice.tools").get("name") for each in listed(given.get("tools"), "tool_choice.tools")
    ]
    if unknown := [name for name in allowed if name not in [tool.name for tool in tools]]:
        raise RefusedError(
            f'tool_choice names "{shortened(unknown[0])}", which is not among the tools', param="tool_choice"
        )
    return choice_of(given.get("mode"), tuple(tool for tool in tools if tool.name in allowed))


def response(id: str, model: str, answers: Sequence[Answer], body: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The answer as one `response`."""
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
    def said(name: str, otherwise: Any) -> Any:
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
        "parallel_tool_calls": said("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": said("store", True),
        "temperature": said("temperature", 1.0),
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": said("tool_choice", "auto"),
        "tools": said("tools", []),
        "top_p": said("top_p", 1.0),
        "truncation": "disabled",
        "usage": None,
        "metadata": said("metadata", {}),
    }


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": len(answer.ids),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + len(answer.ids),
    }


def _output(id: str, answer: Answer, body: Mapping[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    is_cut = answer.finish == "length" and not answer.message.tool_calls  # a call that was cut is not among the items
    items: list[dict[str, Any]] = []
    if answer.thought:
        thought = [{"type": "reasoning_text", "text": answer.thought}]
        items.append({"type": "reasoning", "id": f"rs_{id}", "summary": [], "content": thought, "status": "completed"})
    if answer.message.text or not answer.message.tool_calls:
        named = "message.output_text.logprobs" in (body.get("include") or ()) or body.get("top_logprobs")
        logprobs = logprobs_of(answer, tokenizer) if named and answer.ids else []
        said = {**_part(answer.message.text), "logprobs": logprobs}
        items.append(_said(id, [said], "incomplete" if is_cut else "completed"))
    for place, call in enumerate(answer.message.tool_calls):
        items.append(_called(id, place, call, call.arguments))
    return items


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _said(id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": status, "content": content}


def _called(id: str, place: int, call: ToolCall, arguments: str) -> dict[str, Any]:
    told = {"type": "function_call", "id": f"fc_{id}_{place}", "call_id": call.id, "name": call.name}
    return {**told, "arguments": arguments, "status": "completed"}


class Events:
    """A stream of `response.…` events."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        self._id, self._model, self._body, self._tokenizer = id, model, body, tokenizer
        self._number = 0
        self._shown: str | None = None
        """The text of the message so far; None where it was not begun."""

    def opened(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """The response as it stands before anything is said."""
        head = _head(self._id, self._model, self._body)
        yield self._event("response.created", response=head)
        yield self._event("response.in_progress", response=head)

    def more(self, number: int, text: str) -> Iterator[str]:
        """Some text of the message, which is the first of the items: a thought is shown before anything is said."""
        if self._shown is None:
            yield from self._begun(0)
        yield self._delta(0, text)

    def ended(self, answers: Sequence[Answer]) -> Iterator[str]:
        """What was held back, each call, and the response as a whole."""
        whole = response(self._id, self._model, answers, self._body, self._tokenizer)
        items = whole["output"]
        if self._shown is not None:  # what was shown stays the first
            whole["output"] = items = sorted(items, key=lambda item: item["type"] != "message")
        for place, item in enumerate(items):
            yield from getattr(self, f"_{item['type']}")(place, item)
        name = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
        yield self._event(name, response=whole)

    def failed(self, error: RefusedError) -> str:
        """The response, which came to nothing."""
        told = {**_head(self._id, self._model, self._body), "status": "failed"}
        told["error"] = {"code": "server_error", "message": str(error)}
        return self._event("response.failed", response=told)

    def _message(self, place: int, item: Mapping[str, Any]) -> Iterator[str]:
        if self._shown is None:
            yield from self._begun(place)
        (part,) = item["content"]
        text, shown = part["text"], self._shown or ""
        if text.startswith(shown) and text != shown:
            yield self._delta(place, text[len(shown) :])
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

    def _begun(self, place: int) -> Iterator[str]:
        self._shown = ""
        item = _said(self._id, [], "in_progress")
        yield self._event("response.output_item.added", output_index=place, item=item)
        where = {"item_id": item["id"], "output_index": place, "content_index": 0}
        yield self._event("response.content_part.added", **where, part=_part(""))

    def _delta(self, place: int, text: str) -> str:
        self._shown = (self._shown or "") + text
        where = {"item_id": f"msg_{self._id}", "output_index": place, "content_index": 0}
        return self._event("response.output_text.delta", **where, delta=text, logprobs=[])

    def _event(self, name: str, /, **told: Any) -> str:
        self._number += 1
        return event({"type": name, "sequence_number": self._number - 1, **told}, name)


_REQUEST = request_of(_READ | _HARMLESS, ("model", "input"), tools=FLAT_TOOLS)
RESPONSES = Wire("resp_", asked_of, response, Events, error_of, _REQUEST)
