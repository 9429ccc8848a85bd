"""What is a conversation somebody has on disk? Messages in the OpenAI shape, checked before anything is trained.

    {"messages": [{"role": "user", …}, {"role": "assistant", …, "tool_calls": […]}, {"role": "tool", …}], "tools": […]}
    {"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}]}           ShareGPT
    {"prompt": …, "completion": …}                                                           texts, or lists of messages

Easy to get wrong: a call nobody answered, or an answer to no call, renders without complaint in most templates and
teaches what never happens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.data.rows import Row
from whetstone.errors import did_you_mean

Chosen = Callable[[Message, int, Sequence[Message]], bool]
"""(a message of the assistant, its number among the assistant's, all messages) → whether it is learned from"""
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
    "system": "system", "tool": "tool", "observation": "tool", "function_response": "tool",
}  # fmt: skip
_ROLES = {"developer": "system", "function": "tool"}
"""Roles of other times, and what they are called now."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the tools that were on offer."""

    where: str
    messages: tuple[Message, ...]
    """Calls have the ids `call_T_I` (the assistant's T-th message, its I-th call), as in an episode."""
    tools: tuple[ToolSpec, ...] = ()
    weights: tuple[bool, ...] = ()
    """[messages] False where the row says that a message of the assistant is not learned from (`weight: 0`)."""

    def learned(self, chosen: Chosen) -> tuple[int, ...]:
        """The places of the messages that are learned from."""
        own = [place for place, message in enumerate(self.messages) if message.role == "assistant"]
        return tuple(
            place
            for number, place in enumerate(own)
            if self.weights[place] and chosen(self.messages[place], number, self.messages)
        )


def conversation_of(row: Row, offered: tuple[ToolSpec, ...] = ()) -> Conversation:
    """The conversation of a row.

    Args:
        offered: Tools of a row that says nothing of tools.

    Raises:
        DataError: It holds none, or one that cannot have happened; the message says where and why.
    """
    columns = row.columns
    if isinstance(columns.get("messages"), Sequence) and not isinstance(columns["messages"], str):
        given = list(columns["messages"])
    elif isinstance(columns.get("conversations"), Sequence):
        given = [_of_sharegpt(row, number, said) for number, said in enumerate(columns["conversations"], start=1)]
    elif "prompt" in columns and "completion" in columns:
        given = [*said_by("user", columns["prompt"]), *said_by("assistant", columns["completion"])]
    else:
        near = did_you_mean("messages", columns)
        raise row.error(
            f'no conversation: "messages", "conversations", or "prompt" and "completion" is asked for{near}'
        )
    return checked(row, given, tools_of(row, offered))


def said_by(role: str, given: Any) -> list[Any]:
    """A text as one message of this role; a list of messages as it is."""
    return [{"role": role, "content": given}] if isinstance(given, str) else list(given or ())


def tools_of(row: Row, offered: tuple[ToolSpec, ...] = ()) -> tuple[ToolSpec, ...]:
    """The tools a row declares, as a list or as one written in JSON; those offered where it says nothing.

    Raises:
        DataError: A declaration is none.
    """
    declared = row.columns.get("tools")
    if declared is None:
        return offered
    try:
        declared = json.loads(declared) if isinstance(declared, str) else declared
        return tuple(ToolSpec.from_openai(tool) for tool in declared)
    except (ValueError, TypeError) as error:
        raise row.error(f"tools: {error}") from None


def checked(row: Row, given: Sequence[Any], tools: tuple[ToolSpec, ...]) -> Conversation:
    """The messages as a conversation that can have happened.

    Raises:
        DataError: It cannot.
    """
    messages, weights = [], []
    for number, said in enumerate(given, start=1):
        message, weight = _message(row, number, said)
        messages.append(message)
        weights.append(weight)
    if not messages:
        raise row.error("a conversation without messages")
    if messages[0].role in ("assistant", "tool"):
        raise row.error(f"message 1 is of the {messages[0].role}: nothing stands before it")
    if not any(message.role == "assistant" for message in messages):
        raise row.error("the assistant says nothing, so there is nothing to learn")
    known = {tool.name for tool in tools}
    paired: list[Message] = []
    open_calls: dict[str, str] = {}
    turn = 0
    for number, message in enumerate(messages, start=1):
        if open_calls and message.role != "tool":
            raise row.error(f"message {number}: {len(open_calls)} of the calls before it have no result")
        if message.role == "assistant":
            calls = tuple(replace(call, id=f"call_{turn}_{i}") for i, call in enumerate(message.tool_calls))
            for call, renamed in zip(message.tool_calls, calls, strict=True):
                if tools and call.name not in known:
                    near = did_you_mean(call.name, known)
                    raise row.error(f'message {number} calls "{call.name}", which is not among its tools{near}')
                open_calls[call.id or renamed.id] = renamed.id
            paired.append(replace(message, tool_calls=calls))
            turn += 1
        elif message.role == "tool":
            asked = message.tool_call_id
            if not open_calls or (asked and asked not in open_calls):
                raise row.error(f"message {number} is a result of no call" + (f" ({asked})" if asked else ""))
            paired.append(replace(message, tool_call_id=open_calls.pop(asked or next(iter(open_calls)))))
        else:
            paired.append(message)
    return Conversation(row.where, tuple(paired), tools, tuple(weights))


def _message(row: Row, number: int, said: Any) -> tuple[Message, bool]:
    if not isinstance(said, Mapping):
        raise row.error(f"message {number} is {type(said).__name__}, not an object")
    # tables fill in what a message lacks
    said = {key: value for key, value in said.items() if value is not None}
    said["role"] = _ROLES.get(str(said.get("role")), said.get("role"))
    if isinstance(thought := said.get("reasoning_content"), str) and isinstance(said.get("content", ""), str):
        said["content"] = f"<think>\n{thought}\n</think>\n\n{said.get('content', '')}"
    calls = [_call(call) for call in said.get("tool_calls") or ()]
    try:
        message = Message.from_openai({**said, "tool_calls": calls})
    except ValueError as error:
        raise row.error(f"message {number}: {error}") from None
    return message, bool(said.get("weight", 1))


def _call(call: Any) -> Any:
    """Arguments as a text of JSON, which some write as an object."""
    inner = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping) or isinstance(inner.get("arguments"), str):
        return call
    arguments = inner.get("arguments") or {}
    if isinstance(arguments, Mapping):  # a column of a table has the keys of all rows
        arguments = {key: value for key, value in arguments.items() if value is not None}
    return {**call, "function": {**inner, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def _of_sharegpt(row: Row, number: int, said: Any) -> dict[str, Any]:
    speaker = said.get("from") if isinstance(said, Mapping) else None
    if speaker not in _SPEAKERS:
        near = did_you_mean(str(speaker), _SPEAKERS)
        raise row.error(f'message {number} is from "{speaker}"; known are {", ".join(_SPEAKERS)}{near}')
    return {"role": _SPEAKERS[speaker], "content": said.get("value")}


def everything(message: Message, number: int, messages: Sequence[Message]) -> bool:
    """All the assistant said."""
    return True


def _last(message: Message, number: int, messages: Sequence[Message]) -> bool:
    return message is next(said for said in reversed(messages) if said.role == "assistant")


def _calls(message: Message, number: int, messages: Sequence[Message]) -> bool:
    return bool(message.tool_calls)


def _answers(message: Message, number: int, messages: Sequence[Message]) -> bool:
    return not message.tool_calls


LEARNED_FROM: Mapping[str, Chosen] = {"all": everything, "last": _last, "calls": _calls, "answers": _answers}
"""By name, which messages of the assistant are learned from."""
