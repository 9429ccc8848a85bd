"""`/v1/chat/completions`: what a request of OpenAI's chat API asks for, and an answer in its shape.

Easy to get wrong: a field nobody acts on must not be taken silently. What cannot be given or recorded is refused by
name, what changes nothing is let through.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api import fields
from whetstone.chat.api.asked import Answer, Asked, RefusedError, json_number
from whetstone.chat.api.fields import in_order, listed, mapped, refuse_unknown, shortened, tool_of
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.shapes import request_of
from whetstone.chat.token_bytes import TokenBytes

MOST_NAMED = 20
"""Likeliest tokens that are named at a place."""
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
    refuse_unknown(body, _READ | _HARMLESS, _WHY)
    tools = fields.tools_of([_tool(tool, number) for number, tool in enumerate(listed(body.get("tools"), "tools"))])
    must, tools = choice_of(body.get("tool_choice"), tools)
    fields.refuse_penalties(body)
    named = fields.whole(body, "top_logprobs", least=0, most=MOST_NAMED) or 0
    if named and not fields.flag(body, "logprobs"):
        raise RefusedError("top_logprobs: only with logprobs: true", param="top_logprobs")
    return Asked(
        messages_of(body.get("messages")),
        tools,
        fields.whole(body, "max_completion_tokens", "max_tokens"),
        fields.temperature(body),
        fields.top_p(body),
        fields.stops_of(body.get("stop")),
        fields.seed(body.get("seed")),
        fields.count(body),
        must,
        not fields.flag(body, "parallel_tool_calls", default=True),
        fields.bias(body.get("logit_bias")),
        top_logprobs=named,
        schema=format_of(body.get("response_format"), "response_format", "json_schema"),
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
    return in_order(found, [f"messages[{number}]" for number in range(len(found))])


def _tool(given: Any, number: int) -> ToolSpec:
    where = f"tools[{number}]"
    tool = mapped(given, where)
    if tool.get("type", "function") != "function":
        raise RefusedError(f"{where}: of type {shortened(tool['type'])}; there is: function", param=where)
    inner = mapped(tool.get("function", tool), where)
    return tool_of(where, inner.get("name"), inner.get("description"), inner.get("parameters"))


def choice_of(given: Any, tools: tuple[ToolSpec, ...]) -> tuple[str | None, tuple[ToolSpec, ...]]:
    """(the tool that has to be called: a name, or empty for any; the tools that are shown)

    Raises:
        RefusedError: It is no choice, or one among tools that are not there.
    """
    if given in (None, "auto"):
        return None, tools
    if given == "none":
        return None, ()
    if given == "required":
        if not tools:
            raise RefusedError("tool_choice: required, and there are no tools", param="tool_choice")
        return "", tools
    inner = given.get("function", given) if isinstance(given, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise RefusedError('tool_choice: "none", "auto", "required", or a function by name', param="tool_choice")
    return named_choice(name, tools), tools


def named_choice(name: str, tools: Sequence[ToolSpec]) -> str:
    """The name of a tool that has to be called.

    Raises:
        RefusedError: There is none of this name.
    """
    if name not in {tool.name for tool in tools}:
        raise RefusedError(f'tool_choice names "{shortened(name)}", which is not among the tools', param="tool_choice")
    return name


def format_of(given: Any, name: str, inside: str) -> Mapping[str, Any] | None:
    """The JSON schema an answer has to follow; None: it may be anything.

    Args:
        name: The field, for what is refused.
        inside: The key under which a schema and its name stand; empty: they stand in the format itself.

    Raises:
        RefusedError: It is no format.
    """
    kind = mapped(given, name).get("type", "text") if given is not None else "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        holder = mapped(given.get(inside), f"{name}.{inside}") if inside else given
        schema = holder.get("schema")
        if isinstance(schema, Mapping):
            return schema
        raise RefusedError(f"{name}: a json_schema without a schema", param=name)
    raise RefusedError(f"{name}: no type {shortened(kind)}; there are text, json_object, json_schema", param=name)


def completion(
    id: str, model: str, answers: Sequence[Answer], body: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """The answers as one `chat.completion`."""
    choices = [
        {
            "index": number,
            "message": said(answer),
            "logprobs": _logprobs(answer, tokenizer) if body.get("logprobs") and answer.ids else None,
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


def logprobs_of(answer: Answer, tokenizer: Any) -> list[dict[str, Any]]:
    """Return text, bytes and log-prob of each token, and of the likeliest tokens at its place if they were requested.

    The bytes of all tokens, joined, are those of the text. `token` holds U+FFFD for a part of a character.
    """
    vocabulary, found = TokenBytes(tokenizer), []
    for place, piece in enumerate(vocabulary.split(answer.ids)):
        tops = answer.tops[place].items() if answer.tops else ()
        likeliest = [_named(vocabulary.of(token, is_first=place == 0), logprob) for token, logprob in tops]
        found.append({**_named(piece, answer.logprobs[place]), "top_logprobs": likeliest})
    return found


def _named(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": piece.decode(errors="replace"), "logprob": json_number(logprob), "bytes": list(piece)}


def _logprobs(answer: Answer, tokenizer: Any) -> dict[str, Any]:
    return {"content": logprobs_of(answer, tokenizer), "refusal": None}


class Chunks:
    """A stream of `chat.completion.chunk` events, as lines of text."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        options = body.get("stream_options") or {}
        self._usage = bool(isinstance(options, Mapping) and options.get("include_usage"))
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._logprobs, self._tokenizer = bool(body.get("logprobs")), tokenizer
        self._shown: dict[int, str] = {}

    def opened(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """The roles of all choices."""
        for number in range(count):
            self._shown[number] = ""
            yield self._event(number, {"role": "assistant", "content": ""})

    def more(self, number: int, text: str) -> Iterator[str]:
        """Some text of a choice."""
        self._shown[number] += text
        yield self._event(number, {"content": text})

    def ended(self, answers: Sequence[Answer]) -> Iterator[str]:
        """What was held back of each choice, why it ended, what it took."""
        for number, answer in enumerate(answers):
            text, shown = answer.message.text, self._shown[number]
            if answer.thought:
                yield self._event(number, {"reasoning_content": answer.thought})
            if text.startswith(shown) and text != shown:
                yield self._event(number, {"content": text[len(shown) :]})
            for place, call in enumerate(answer.message.tool_calls):
                function = {"name": call.name, "arguments": call.arguments}
                called = {"index": place, "id": call.id, "type": "function", "function": function}
                yield self._event(number, {"tool_calls": [called]})
            told = self._logprobs and bool(answer.ids)
            more = {"logprobs": _logprobs(answer, self._tokenizer)} if told else {}
            yield self._event(number, {}, finish_reason=answer.finish, **more)
        if self._usage:
            yield event({**self._head, "choices": [], "usage": usage(answers)})
        yield "data: [DONE]\n\n"

    def failed(self, error: RefusedError) -> str:
        """What went wrong."""
        return event(error_of(error))

    def _event(self, number: int, delta: Mapping[str, Any], **more: Any) -> str:
        choice = {"index": number, "delta": dict(delta), "logprobs": None, "finish_reason": None, **more}
        return event({**self._head, "choices": [choice], **({"usage": None} if self._usage else {})})


def event(told: Mapping[str, Any], name: str = "") -> str:
    """A server-sent event, with a name where the API has names."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(told, ensure_ascii=False)}\n\n"


def error_of(error: RefusedError) -> dict[str, Any]:
    """A refusal in the API's shape."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


_REQUEST = request_of(_READ | _HARMLESS, ("model", "messages"))
CHAT = Wire("chatcmpl-", asked_of, completion, Chunks, error_of, _REQUEST)
