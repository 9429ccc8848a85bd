"""What did other tools write down of what their models did? Conversations, what each was worth, and tokens if kept.

    {"request": {"messages": …, "tools": …}, "response": {"choices": [{"message": …}]}}    calls of an OpenAI-style API
    {"step": …, "prompt": …, "completion": …, "accuracy": …, "advantage": …}               TRL's completions
    {"prompt_ids": …, "completion_ids": …, "logprobs": …, "env_mask": …, "reward": …}      what TRL's rollouts return
    {"prompt": …, "completion": …, "answer": …, "reward": …}                               verifiers before 0.4
    {"task": …, "traces": [{"nodes": …, "rewards": …}]}                                    verifiers (`traces.jsonl`)

Any other row is a conversation of its own, with a `reward` or without.

Easy to get wrong: a log of calls holds a conversation once per call, each time longer. Only what a call answered is
learned from, else its first turns would count most.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.data.rows import Row
from whetstone.errors import did_you_mean

_OF_TRL = {"step", "advantage"}
_REWARDS = ("reward", "score")
_TASKS = ("task_id", "example_id", "task")


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of an episode, in the order the model read or wrote them."""

    ids: tuple[int, ...]
    sampled: bool
    logprobs: tuple[float, ...] = ()
    """[ids] of sampled ones, those they were drawn with; NaN where nobody wrote them down."""
    begins: bool = False
    """Whether all before it is gone from the context, and this is the whole of it."""
    said: str = ""
    """Of sampled ones, what they say as it was written beside them; empty where it was not."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One episode somebody else's tool wrote down."""

    row: Row
    """A conversation in the OpenAI shape, if `pieces` is empty."""
    task: str
    """Episodes of one task have this in common."""
    reward: float | None = None
    """What it was worth; None where nobody said."""
    pieces: tuple[Piece, ...] = ()
    """Its tokens, where they are on record."""


def logged(row: Row, reward: str | Sequence[str] | None = None) -> list[Logged]:
    """The episodes of a row, with their tokens where those are on record.

    Args:
        reward: The column with the reward, or several that are added up; None: the usual ones.

    Raises:
        DataError: There is no such column, or it is not said which of several it is.
    """
    columns = row.columns
    if isinstance(columns.get("traces"), Sequence):
        return [episode for trace in columns["traces"] for episode in _of_trace(row, trace)]
    worth = _reward(row, reward)
    if isinstance(columns.get("completion_ids"), Sequence):
        return [Logged(row, _task(columns, columns.get("prompt_ids")), worth, tuple(_of_tokens(row)))]
    row = conversation_rows(row)[0]
    opening = row.columns.get("prompt") or _before_the_assistant(
        row.columns.get("messages") or row.columns.get("conversations")
    )
    return [Logged(row, _task(columns, opening), worth)]


def conversation_rows(row: Row) -> list[Row]:
    """What was said in a row, in the shape of a conversation of one's own; most rows are that already.

    Raises:
        DataError: It is in tokens alone, or no call of a chat API.
    """
    columns = row.columns
    if isinstance(columns.get("traces"), Sequence):
        return [said for trace in columns["traces"] for said in _branches(row, trace)]
    if isinstance(columns.get("response"), Mapping):
        return [Row(row.where, _of_call(row))]
    if "completion_ids" in columns and "completion" not in columns and "messages" not in columns:
        raise row.error("an episode in tokens alone; an offline stage learns from it")
    return [row]


def _task(columns: Mapping[str, Any], opening: Any) -> str:
    named = [columns[name] for name in _TASKS if isinstance(columns.get(name), str | int)]
    said = named[0] if named else opening
    return json.dumps([columns.get("step"), said], default=str)


def _before_the_assistant(messages: Any) -> list[Any]:
    said = list(messages) if isinstance(messages, Sequence) and not isinstance(messages, str) else []
    spoken = (n for n, each in enumerate(said) if isinstance(each, Mapping) and _speaker(each) in ("assistant", "gpt"))
    return said[: next(spoken, len(said))]


def _speaker(message: Mapping[str, Any]) -> Any:
    return message.get("role", message.get("from"))


def _reward(row: Row, named: str | Sequence[str] | None) -> float | None:
    columns = row.columns
    if named is not None:
        asked = [named] if isinstance(named, str) else list(named)
        for name in asked:
            if not _is_number(columns.get(name)):
                wrong = "is missing" if columns.get(name) is None else "is no number"
                raise row.error(f'the reward "{name}" {wrong}{did_you_mean(name, columns)}')
        return float(sum(columns[name] for name in asked))
    usual = [name for name in _REWARDS if _is_number(columns.get(name))]
    if usual:
        return float(columns[usual[0]])
    if not set(columns) >= _OF_TRL:
        return None
    scored = [name for name, value in columns.items() if _is_number(value) and name not in _OF_TRL]
    if len(scored) != 1:
        raise row.error(f"{len(scored)} columns could be the reward ({', '.join(scored)}); say which (reward)")
    return float(columns[scored[0]])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _of_call(row: Row) -> dict[str, Any]:
    """A request and its answer; only the answer is learned from."""
    request = row.columns.get("request") or row.columns.get("body") or row.columns
    response = row.columns["response"]
    response = response["body"] if isinstance(response.get("body"), Mapping) else response
    choices = response.get("choices")
    messages = request.get("messages") if isinstance(request, Mapping) else None
    if not isinstance(messages, Sequence) or not isinstance(choices, Sequence) or not choices:
        raise row.error("a call of a chat API has `request.messages` and `response.choices`")
    before = [{**said, "weight": 0} if said.get("role") == "assistant" else said for said in messages]
    tools = {"tools": request["tools"]} if request.get("tools") else {}
    named = {name: row.columns[name] for name in _TASKS if name in row.columns}
    return {"messages": [*before, choices[0].get("message")], **tools, **named}


def _of_tokens(row: Row) -> Iterator[Piece]:
    columns = row.columns
    ids, prompt = list(columns["completion_ids"]), list(columns.get("prompt_ids") or ())
    mask = [bool(own) for own in columns.get("env_mask") or [1] * len(ids)]
    logprobs = list(columns.get("logprobs") or [math.nan] * len(ids))
    if not prompt:
        raise row.error("completion_ids without prompt_ids: what the model read is not known")
    if not len(ids) == len(mask) == len(logprobs):
        raise row.error(f"{len(ids)} completion_ids, {len(logprobs)} logprobs and {len(mask)} of env_mask")
    yield Piece(tuple(prompt), sampled=False, begins=True)
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or mask[end] != mask[start]:
            drawn = tuple(map(float, logprobs[start:end])) if mask[start] else ()
            yield Piece(tuple(ids[start:end]), mask[start], drawn)
            start = end


def _of_trace(row: Row, trace: Mapping[str, Any]) -> list[Logged]:
    """A rollout as a graph of messages: in the order they were drawn where it kept its tokens, else each branch."""
    nodes = trace.get("nodes") or []
    rewards = [given for given in (trace.get("rewards") or {}).values() if given is not None]
    worth = float(sum(each["score"] * each.get("weight", 1.0) for each in rewards)) if rewards else None
    said = trace.get("task") or row.columns.get("task") or {}
    task = json.dumps(said.get("key") or said.get("hash") or said.get("data"), default=str)
    drawn = [number for number, node in enumerate(nodes) if node.get("sampled")]
    if drawn and all(node.get("token_ids") for node in nodes):
        return [Logged(row, task, worth, tuple(_pieces(nodes, drawn)))]
    return [Logged(branch, task, worth) for branch in _branches(row, trace)]


def _branches(row: Row, trace: Mapping[str, Any]) -> Iterator[Row]:
    """Each path from a first message to a last one; what two have in common is learned from once."""
    nodes = trace.get("nodes") or []
    parents = {node.get("parent") for node in nodes}
    seen: set[int] = set()
    for leaf in (number for number in range(len(nodes)) if number not in parents):
        path = _path(nodes, leaf)
        new = [place not in seen for place in path]
        seen |= set(path)
        messages = [_message(nodes[place], new=fresh) for place, fresh in zip(path, new, strict=True)]
        tools = nodes[path[0]].get("tools")
        yield Row(row.where, {"messages": messages, **({"tools": tools} if tools else {})})


def _path(nodes: Sequence[Mapping[str, Any]], last: int) -> list[int]:
    """From the first message to this one."""
    path = [last]
    while (parent := nodes[path[-1]].get("parent")) is not None:
        path.append(parent)
    return path[::-1]


def _pieces(nodes: Sequence[Mapping[str, Any]], drawn: Sequence[int]) -> Iterator[Piece]:
    before: list[int] = []
    unread: Sequence[int] = ()
    for number in drawn:
        path, node = _path(nodes, number), nodes[number]
        goes_on = bool(before) and path[: len(before)] == before
        new = path[len(before) if goes_on else 0 : -1]
        ids, own = node["token_ids"], node.get("mask") or [True] * len(node["token_ids"])
        begin, end = (own.index(True), len(own) - own[::-1].index(True)) if any(own) else (len(ids), len(ids))
        read = [token for place in new for token in nodes[place]["token_ids"]]
        yield Piece((*(unread if goes_on else ()), *read, *ids[:begin]), sampled=False, begins=not goes_on)
        logprobs = node.get("logprobs") or [math.nan] * (end - begin)
        said = node["message"].get("content")
        drawn_as = tuple(map(float, logprobs))
        yield Piece(tuple(ids[begin:end]), True, drawn_as, said=said if isinstance(said, str) else "")
        before, unread = path, ids[end:]


def _message(node: Mapping[str, Any], *, new: bool) -> dict[str, Any]:
    said = dict(node["message"])
    if said.get("role") != "assistant":
        return said
    calls = [
        {"id": call.get("id"), "type": "function", "function": {key: call.get(key) for key in ("name", "arguments")}}
        for call in said.get("tool_calls") or ()
    ]
    return {**said, "tool_calls": calls, "weight": int(bool(node.get("sampled")) and new)}


def list_used_columns(row: Row, reward: str | Sequence[str] | None) -> set[str]:
    """Return the columns from which the task and the reward of an episode are read.

    Args:
        row: The row of the log.
        reward: Names of the columns with the reward; None: the usual ones.
    """
    named = [reward] if isinstance(reward, str) else reward or _REWARDS
    is_trl = set(row.columns) >= _OF_TRL
    numbers = {name for name, value in row.columns.items() if is_trl and reward is None and _is_number(value)}
    return {*named, *_TASKS, *_OF_TRL, *numbers}
