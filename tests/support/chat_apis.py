"""One prompt for the three chat APIs of the server, complete or streamed, with responses in one form."""

from dataclasses import dataclass

import openai

APIS = ("chat", "responses", "messages")
WAYS = [(api, streamed) for api in APIS for streamed in (False, True)]


@dataclass(frozen=True)
class Reply:
    """A response of any API."""

    text: str
    calls: tuple[tuple[str, object], ...]
    """(name, arguments as JSON text; an object in Anthropic's API)"""
    ended: str
    """`stop`, `length` or `tool_calls`."""


async def ask(served, way, content="Compute 2+3", *, tools=(), choice=None, single=False, max_tokens=400, **more):
    """Send one prompt.

    Args:
    way: (API, whether the response is streamed).
    tools: (name, schema) of each tool.
    choice: `auto`, `none`, `required` or the name of a tool.
    single: Whether at most one call is requested.
    """
    api, streamed = way
    body = {"model": "tiny", "stream": streamed, **more}
    if api == "messages":
        return await _ask_anthropic(served, body, content, tools, choice, single, max_tokens)
    named = {"auto", "none", "required"}
    wrapped = (lambda tool: {"type": "function", "function": tool}) if api == "chat" else (lambda tool: tool)
    flat = [{"type": "function", "name": name, "parameters": schema} for name, schema in tools]
    if tools:
        body["tools"] = [wrapped({k: v for k, v in tool.items() if api != "chat" or k != "type"}) for tool in flat]
    if choice is not None:
        chosen = {"type": "function", "function": {"name": choice}} if api == "chat" else None
        body["tool_choice"] = choice if choice in named else chosen or {"type": "function", "name": choice}
    if single:
        body["parallel_tool_calls"] = False
    if api == "chat":
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        answer = await served.client().chat.completions.create(messages=messages, max_tokens=max_tokens, **body)
        return await _chat_chunks(answer) if streamed else _chat(answer.choices[0])
    answer = await served.client().responses.create(input=content, max_output_tokens=max_tokens, **body)
    return await _response_events(answer) if streamed else _response(answer)


def _chat(choice):
    message = choice.message
    calls = tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ())
    return Reply(message.content or "", calls, choice.finish_reason)


async def _chat_chunks(stream):
    text, calls, ended = "", [], None
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += [(call.function.name, call.function.arguments) for call in choice.delta.tool_calls or ()]
            ended = choice.finish_reason or ended
    return Reply(text, tuple(calls), ended)


def _response(response):
    calls = tuple((item.name, item.arguments) for item in response.output if item.type == "function_call")
    assert (response.status == "incomplete") == (response.incomplete_details is not None)
    if response.incomplete_details is not None:
        assert response.incomplete_details.reason == "max_output_tokens"
        return Reply(response.output_text, calls, "length")
    return Reply(response.output_text, calls, "tool_calls" if calls else "stop")


async def _response_events(stream):
    text, last = "", None
    async for event in stream:
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    reply = _response(last.response)
    assert last.type == ("response.incomplete" if reply.ended == "length" else "response.completed")
    return Reply(text, reply.calls, reply.ended)


_ENDED = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


async def _ask_anthropic(served, body, content, tools, choice, single, max_tokens):
    kinds = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if tools:
        body["tools"] = [{"name": name, "input_schema": schema} for name, schema in tools]
    if choice is not None or single:
        chosen = kinds.get(choice or "auto", {"type": "tool", "name": choice})
        body["tool_choice"] = {**chosen, **({"disable_parallel_tool_use": True} if single else {})}
    answer = await served.anthropic().messages.create(messages=messages, max_tokens=max_tokens, **body)
    if not body["stream"]:
        text = "".join(block.text for block in answer.content if block.type == "text")
        calls = tuple((block.name, block.input) for block in answer.content if block.type == "tool_use")
        return Reply(text, calls, _ENDED[answer.stop_reason])
    text, names, written, reason = "", [], [], None
    async for event in answer:
        if event.type == "content_block_start" and event.content_block.type == "tool_use":
            names.append(event.content_block.name)
            written.append("")
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            written[-1] += event.delta.partial_json
        elif event.type == "message_delta":
            reason = event.delta.stop_reason
    return Reply(text, tuple(zip(names, written, strict=True)), _ENDED[reason])


REFUSED = openai.BadRequestError
