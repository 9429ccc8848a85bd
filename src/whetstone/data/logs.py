"""Logged episodes of other tools: conversations, their rewards, and tokens with log-probs if the log has them.

    {"request": {"messages": …, "tools": …}, "response": {"choices": [{"message": …}]}}    calls of an OpenAI-style API
    {"step": …, "prompt": …, "completion": …, "accuracy": …, "advantage": …}               TRL's completions
    {"prompt_ids": …, "completion_ids": …, "logprobs": …, "env_mask": …, "reward": …}      return value of TRL rollouts
    {"prompt": …, "completion": …, "answer": …, "reward": …}                               verifiers before 0.4
    {"task": …, "traces": [{"nodes": …, "rewards": …}]}                                    verifiers (`traces.jsonl`)

Any other row is a conversation, with an optional `reward`.

Note:
    A log of calls contains a conversation once per call, each time longer. Only the response of a call is trained,
    otherwise the first turns would have the highest weight.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from whetstone.data.dataset_formats import CONVERSATIONS, ROLES
from whetstone.data.row_readers import Row
from whetstone.errors import did_you_mean

_OF_TRL = {"step", "advantage"}
_REWARDS = ("reward", "score")
_TASKS = ("task_id", "example_id", "task")


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens of a logged episode that were either all sampled or all read by the model."""

    ids: tuple[int, ...]
    """Token ids, in the order in which the model read or sampled them."""
    sampled: bool
    """Whether the policy sampled the tokens; otherwise they are context."""
    logprobs: tuple[float, ...] = ()
    """[ids] log-prob of each sampled token; NaN if the log does not have log-probs."""
    begins: bool = False
    """Whether the tokens are a new context that replaces all tokens before them."""
    text: str = ""
    """Text of sampled tokens according to the log; empty if the log does not have it."""


@dataclass(frozen=True, slots=True)
class LoggedEpisode:
    """One episode from the log of another tool, before it is tokenized."""

    row: Row
    """Conversation in the OpenAI format, if `pieces` is empty."""
    task: str
    """Key of the task; episodes with the same key form a group."""
    reward: float | None = None
    """Outcome reward; None if the log has none."""
    pieces: tuple[TokenSpan, ...] = ()
    """Spans of tokens in order; empty if the log has only text."""


def parse_log_row(row: Row, reward: str | Sequence[str] | None = None) -> list[LoggedEpisode]:
    """Parse the episodes of a row of a log, with their tokens if the log has them.

    Args:
        row: The row, in any of the log formats listed in this module, or a conversation.
        reward: Column of the reward, or several columns that are summed. None uses `reward`, else `score`, else the
            only numeric column of a TRL log.

    Raises:
        DataError: The reward column does not exist or is ambiguous, or tokens and masks are inconsistent.
    """
    columns = row.columns
    if columns.get("traces") is not None:
        traces = _list(row, columns["traces"], "traces")
        return [episode for k, trace in enumerate(traces) for episode in _of_trace(row, trace, f"traces[{k}]")]
    value = _reward(row, reward)
    if columns.get("completion_ids") is not None:
        return [LoggedEpisode(row, _task(columns, columns.get("prompt_ids")), value, tuple(_of_tokens(row)))]
    row = conversation_rows(row)[0]
    opening = columns.get("prompt")
    if not opening:
        messages = next((row.columns[name] for name in (*CONVERSATIONS, "prompt") if row.columns.get(name)), None)
        opening = _before_the_assistant(messages)
    return [LoggedEpisode(row, _task(columns, opening), value)]


def conversation_rows(row: Row) -> list[Row]:
    """Convert a row of a log into rows with a conversation; a row that is a conversation is returned unchanged.

    A call of a chat API becomes one conversation, and a verifiers trace one conversation per branch.

    Raises:
        DataError: The row has only token ids, or is not a valid call of a chat API.
    """
    columns = row.columns
    if columns.get("traces") is not None:
        traces = _list(row, columns["traces"], "traces")
        return [branch for k, trace in enumerate(traces) for branch in _branches(row, trace, f"traces[{k}]")]
    if isinstance(columns.get("response"), Mapping):
        return [Row(row.where, _of_call(row), row.number)]
    if "completion_ids" in columns and "completion" not in columns and "messages" not in columns:
        raise row.error("the row has only token ids and no messages; use the file in an offline stage")
    return [row]


def _task(columns: Mapping[str, Any], opening: Any) -> str:
    named = [columns[name] for name in _TASKS if isinstance(columns.get(name), str | int)]
    task = named[0] if named else opening
    return json.dumps([columns.get("step"), task], default=str)


def _before_the_assistant(messages: Any) -> list[Any]:
    with suppress(ValueError, RecursionError):
        messages = json.loads(messages) if isinstance(messages, str) else messages
    listed = list(messages) if isinstance(messages, Sequence) and not isinstance(messages, str) else []
    spoken = (n for n, each in enumerate(listed) if isinstance(each, Mapping) and _role(each) == "assistant")
    return listed[: next(spoken, len(listed))]


def _role(message: Mapping[str, Any]) -> str | None:
    return ROLES.get(str(message.get("role") or message.get("from")).lower())


def _reward(row: Row, named: str | Sequence[str] | None) -> float | None:
    columns = {name: _number(value) for name, value in row.columns.items()}
    if named is not None:
        names = [named] if isinstance(named, str) else list(named)
        total = 0.0
        for name in names:
            value = columns.get(name)
            if value is None:
                reason = "is missing" if row.columns.get(name) is None else "is not a number"
                raise row.error(f'the reward "{name}" {reason}{did_you_mean(name, row.columns)}')
            total += value
        return total
    usual = [value for name in _REWARDS if (value := columns.get(name)) is not None]
    if usual:
        return usual[0]
    if not set(columns) >= _OF_TRL:
        return None
    scored = {name: value for name, value in columns.items() if value is not None and name not in _OF_TRL}
    if len(scored) != 1:
        raise row.error(
            f"{len(scored)} columns could be the reward ({', '.join(scored)}); name the column in `data.reward`"
        )
    return next(iter(scored.values()))


def _number(value: Any) -> float | None:
    """Convert a number, or the text of a number as in CSV, to a float; None for any other value."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_finite_number(value) else None


def is_finite_number(value: Any) -> bool:
    """Return whether a value is a finite number that a float can hold."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _of_call(row: Row) -> dict[str, Any]:
    """Convert a request and its response; only the response is trained."""
    request = row.columns.get("request") or row.columns.get("body") or row.columns
    response = row.columns["response"]
    response = response["body"] if isinstance(response.get("body"), Mapping) else response
    choices = response.get("choices")
    messages = request.get("messages") if isinstance(request, Mapping) else None
    if not isinstance(messages, list | tuple) or not isinstance(choices, list | tuple) or not choices:
        raise row.error("a call of a chat API must have `request.messages` and `response.choices`")
    if not isinstance(choices[0], Mapping) or not isinstance(choices[0].get("message"), Mapping):
        raise row.error(f"a message is expected, got {_shorten(choices[0])}", at="response.choices[0].message")
    columns = {name: value for name, value in row.columns.items() if name not in ("request", "body", "response")}
    if request is row.columns:
        columns.pop("messages")
    else:  # what nothing reads of the request and the response is reported by its path
        columns |= {f"request.{name}": value for name, value in request.items() if name != "messages"}
        columns |= {name: columns.pop(f"request.{name}") for name in ("tools", "functions") if request.get(name)}
    columns |= {f"response.{name}": value for name, value in response.items() if name != "choices"}
    columns["response.choices[1]"] = choices[1:]
    return {**columns, "prompt": messages, "completion": [choices[0]["message"]]}


_MAX_LOGPROB = 1e-6
"""Largest log-prob, which allows for rounding; a probability is at most 1."""


def _of_tokens(row: Row) -> Iterator[TokenSpan]:
    columns = row.columns
    ids = _token_ids(row, columns["completion_ids"], "completion_ids")
    if not columns.get("prompt_ids"):
        raise row.error("completion_ids without prompt_ids: the context of the sampled tokens is unknown; log both")
    prompt = _token_ids(row, columns["prompt_ids"], "prompt_ids")
    mask = _mask(row, columns.get("env_mask"), "env_mask", len(ids))
    logprobs = columns.get("logprobs")
    logprobs = [math.nan] * len(ids) if logprobs is None else _list(row, logprobs, "logprobs")
    if not ids or not len(ids) == len(mask) == len(logprobs):
        raise row.error(
            f"completion_ids ({len(ids)}), logprobs ({len(logprobs)}) and env_mask ({len(mask)}) must have equal, "
            "positive lengths"
        )
    yield TokenSpan(tuple(prompt), sampled=False, begins=True)
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or mask[end] != mask[start]:
            sampled = range(start, end) if mask[start] and columns.get("logprobs") is not None else ()
            checked = tuple(_logprob(row, logprobs[k], f"logprobs[{k}]") for k in sampled)
            unknown = (math.nan,) * (end - start) if mask[start] else ()
            yield TokenSpan(tuple(ids[start:end]), mask[start], checked or unknown)
            start = end


def _list(row: Row, values: Any, at: str) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise row.error(f"a list is expected, got {_shorten(values)}", at=at)
    return list(values)


def _token_ids(row: Row, values: Any, at: str) -> list[int]:
    for index, id in enumerate(ids := _list(row, values, at)):
        if isinstance(id, bool) or not isinstance(id, int) or id < 0:
            raise row.error(f"a token id must be an integer of at least 0, got {_shorten(id)}", at=f"{at}[{index}]")
    return ids


def _mask(row: Row, values: Any, at: str, length: int) -> list[bool]:
    mask = [True] * length if values is None else _list(row, values, at)
    for index, value in enumerate(mask):
        if not isinstance(value, int | float) or value not in (0, 1):
            raise row.error(f"a mask value must be 0 or 1, got {_shorten(value)}", at=f"{at}[{index}]")
    return list(map(bool, mask))


def _logprob(row: Row, value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value <= _MAX_LOGPROB:
        raise row.error(f"a log-prob must be a finite number of at most 0, got {_shorten(value)}", at=at)
    try:
        return float(value)
    except OverflowError:
        raise row.error("a log-prob must be a finite number, got an integer of hundreds of digits", at=at) from None


def _shorten(value: Any) -> str:
    """Format a value as JSON for an error message, cut after 40 characters."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)[:40] if not isinstance(value, int) or abs(value) < 10**40 else "a number of many digits"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _of_trace(row: Row, trace: Any, at: str) -> list[LoggedEpisode]:
    """Read a verifiers trace, which is a graph of messages.

    A trace with token ids is one episode in sampling order; a trace without them has one episode per branch.
    """
    nodes = _nodes(row, trace, at)
    value = _trace_reward(row, trace.get("rewards"), f"{at}.rewards")
    task_fields = trace.get("task") or row.columns.get("task") or {}
    named = (
        (task_fields.get("key") or task_fields.get("hash") or task_fields.get("data"))
        if isinstance(task_fields, Mapping)
        else task_fields
    )
    task = json.dumps(named, default=str)
    drawn = [number for number, node in enumerate(nodes) if node.get("sampled")]
    if drawn and all(node.get("token_ids") for node in nodes):
        return [LoggedEpisode(row, task, value, tuple(_pieces(row, nodes, drawn, f"{at}.nodes")))]
    return [LoggedEpisode(branch, task, value) for branch in _branches(row, trace, at)]


def _trace_reward(row: Row, rewards: Any, at: str) -> float | None:
    """Return the weighted sum of the rewards of a trace; None if the trace has no rewards."""
    if not isinstance(rewards or {}, Mapping):
        raise row.error(f"an object is expected, got {_shorten(rewards)}", at=at)
    terms = [(name, reward) for name, reward in (rewards or {}).items() if reward is not None]
    for name, reward in terms:
        is_reward = isinstance(reward, Mapping) and is_finite_number(reward.get("score"))
        if not is_reward or not is_finite_number(reward.get("weight", 1.0)):
            raise row.error(f"a score and a weight are expected, got {_shorten(reward)}", at=f"{at}.{name}")
    return float(sum(reward["score"] * reward.get("weight", 1.0) for _, reward in terms)) if terms else None


def _nodes(row: Row, trace: Any, at: str) -> list[Mapping[str, Any]]:
    """Return the nodes of a trace; the parent of each is a node before it."""
    if not isinstance(trace, Mapping):
        raise row.error(f"an object is expected, got {_shorten(trace)}", at=at)
    nodes = _list(row, trace.get("nodes") or [], f"{at}.nodes")
    for index, node in enumerate(nodes):
        if not isinstance(node, Mapping) or not isinstance(node.get("message"), Mapping):
            raise row.error(f"an object with a message is expected, got {_shorten(node)}", at=f"{at}.nodes[{index}]")
        parent = node.get("parent")
        if parent is not None and (not isinstance(parent, int) or not 0 <= parent < index):
            reason = f"the index of a node before it is expected, got {_shorten(parent)}"
            raise row.error(reason, at=f"{at}.nodes[{index}].parent")
    return nodes


def _branches(row: Row, trace: Any, at: str) -> Iterator[Row]:
    """Yield each path from a first message to a last one; messages that paths share are trained once."""
    nodes = _nodes(row, trace, at)
    parents = {node.get("parent") for node in nodes}
    seen: set[int] = set()
    for leaf in (number for number in range(len(nodes)) if number not in parents):
        path = _path(nodes, leaf)
        new = [place not in seen for place in path]
        seen |= set(path)
        messages = [_message(nodes[place], new=fresh) for place, fresh in zip(path, new, strict=True)]
        tools = nodes[path[0]].get("tools")
        columns = {name: value for name, value in row.columns.items() if name not in ("traces", "task")}
        yield Row(row.where, {**columns, "messages": messages, **({"tools": tools} if tools else {})}, row.number)


def _path(nodes: Sequence[Mapping[str, Any]], last: int) -> list[int]:
    """Return the indices of the nodes on the path from the first message to a node."""
    path = [last]
    while (parent := nodes[path[-1]].get("parent")) is not None:
        path.append(parent)
    return path[::-1]


def _pieces(row: Row, nodes: Sequence[Mapping[str, Any]], drawn: Sequence[int], at: str) -> Iterator[TokenSpan]:
    tokens = [_token_ids(row, node["token_ids"], f"{at}[{k}].token_ids") for k, node in enumerate(nodes)]
    before: list[int] = []
    unread: Sequence[int] = ()
    for number in drawn:
        path, node = _path(nodes, number), nodes[number]
        goes_on = bool(before) and path[: len(before)] == before
        new = path[len(before) if goes_on else 0 : -1]
        ids, own = tokens[number], _mask(row, node.get("mask") or None, f"{at}[{number}].mask", len(tokens[number]))
        begin, end = (own.index(True), len(own) - own[::-1].index(True)) if any(own) else (len(ids), len(ids))
        read = [token for place in new for token in tokens[place]]
        yield TokenSpan((*(unread if goes_on else ()), *read, *ids[:begin]), sampled=False, begins=not goes_on)
        logprobs: tuple[float, ...] = (math.nan,) * (end - begin)
        if node.get("logprobs"):
            place = f"{at}[{number}].logprobs"
            values = _list(row, node["logprobs"], place)
            logprobs = tuple(_logprob(row, value, f"{place}[{k}]") for k, value in enumerate(values))
        if len(own) != len(ids) or len(logprobs) != end - begin:
            raise row.error(
                f"{len(ids)} token_ids, {len(own)} of mask, and {len(logprobs)} logprobs for {end - begin} sampled",
                at=f"{at}[{number}]",
            )
        content = node["message"].get("content")
        yield TokenSpan(tuple(ids[begin:end]), True, logprobs, text=content if isinstance(content, str) else "")
        before, unread = path, ids[end:]


def _message(node: Mapping[str, Any], *, new: bool) -> dict[str, Any]:
    message = dict(node["message"])
    if message.get("role") != "assistant":
        return message
    return {**message, "weight": int(bool(node.get("sampled")) and new)}


def list_used_columns(row: Row, reward: str | Sequence[str] | None) -> set[str]:
    """Return the columns from which the task, the reward and the tokens of an episode are read.

    Args:
        row: The row of the log.
        reward: Names of the columns with the reward; None: the usual ones.
    """
    named = [reward] if isinstance(reward, str) else reward or _REWARDS
    is_trl = set(row.columns) >= _OF_TRL
    numbers = {name for name, value in row.columns.items() if is_trl and reward is None and _number(value) is not None}
    tokens = {"prompt_ids", "completion_ids", "logprobs", "env_mask", "traces"}
    tokens |= {"prompt", "completion"} if "completion_ids" in row.columns else set()
    return {*named, *_TASKS, *_OF_TRL, *numbers, *tokens}
