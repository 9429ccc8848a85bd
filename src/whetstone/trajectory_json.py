"""Encoding of trajectories, turns and tasks as JSON.

Messages are stored for reading, and token columns for computing.

Note:
    JSON has no NaN: the log-prob of a token that was not sampled is null, and minus infinity is a string. A forked
    trajectory must get the same `Turn` objects as its parent, or the tree is lost on disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Annotated, Any, NotRequired

import orjson
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from whetstone.chat.message import Message
from whetstone.json_lines import parse_object, to_writable, validate_shape
from whetstone.tokens import check_spans
from whetstone.trajectory import (
    Author,
    CallRecord,
    EndReason,
    InnerCall,
    Judgement,
    Media,
    OffPolicy,
    Provenance,
    RemovalScope,
    Score,
    Task,
    Tokens,
    Trajectory,
    Turn,
)

_Number = int | float | None
"""None: the number is not finite."""
_Count = Annotated[int, Field(ge=0)]


class _TokensRow(TypedDict):
    ids: list[int]
    authors: list[tuple[Author, _Count]]
    versions: NotRequired[list[int]]
    logprobs: NotRequired[list[float | None]]
    entropies: NotRequired[list[float | None]]
    media: NotRequired[list[tuple[_Count, Annotated[int, Field(ge=1)], str]]]
    """[start, length, digest] per image; the content itself is not stored."""
    measured: NotRequired[dict[str, list[float | None]]]


_InnerRow = tuple[tuple[str, str, float, bool, float, str], str, str]
"""[record, arguments, result] of a call that the code of another call made."""


class _TurnRow(TypedDict):
    context: _TokensRow
    action: _TokensRow
    observation: _Count
    reward: _Number
    calls: list[
        tuple[str, str, float]
        | tuple[str, str, float, bool]
        | tuple[str, str, float, bool, float]
        | tuple[str, str, float, bool, float, str]
        | tuple[str, str, float, bool, float, str, list[_InnerRow]]
    ]
    opens_segment: bool
    aside: NotRequired[bool]
    conversation: NotRequired[int]
    agent: NotRequired[str]
    training_context: _TokensRow | None
    seconds: tuple[float, float, float]
    messages: NotRequired[list[dict[str, Any]]]


class _JudgeAnswerRow(TypedDict):
    question: str
    said: dict[str, Any]


class _ScoreRow(TypedDict):
    value: _Number
    parts: dict[str, _Number]
    turns: list[_Number] | None
    success: bool | None
    signals: NotRequired[dict[str, list[_Number]]]
    judgements: NotRequired[list[_JudgeAnswerRow]]


class _TrajectoryRow(TypedDict):
    id: str
    task_id: str
    ended: EndReason
    error: str | None
    score: _ScoreRow | None
    removal: RemovalScope | None
    parent: str | None
    fork_turn: _Count | None
    greedy: NotRequired[bool]
    provenance: NotRequired[Provenance]
    marks: NotRequired[list[str]]
    declared: NotRequired[dict[str, str]]
    role: NotRequired[str]
    member: NotRequired[str]
    final: NotRequired[dict[str, Any]]
    off_policy: NotRequired[OffPolicy]
    seconds: float
    closing: NotRequired[_TokensRow | None]
    messages: list[dict[str, Any]]
    opening: _Count
    turns: list[_TurnRow]


class _TaskRow(TypedDict):
    id: str
    prompt: str
    private: dict[str, Any]
    tags: dict[str, Any]
    messages: NotRequired[list[dict[str, Any]]]


_TRAJECTORY, _TURN, _TASK = TypeAdapter(_TrajectoryRow), TypeAdapter(_TurnRow), TypeAdapter(_TaskRow)


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """Encode a trajectory as one line of JSON, without the line break.

    Invalid characters become `�`.
    """
    row = _trajectory(trajectory)
    try:
        return orjson.dumps(row)
    except TypeError:
        return orjson.dumps(to_writable(row))


def decode_trajectories(lines: Iterable[bytes]) -> list[Trajectory]:
    """Decode lines that `encode_trajectory` wrote.

    A fork gets the turns of its parent, which must precede it.

    Raises:
        ValueError: If a line is not a trajectory; the message is one line.
    """
    read: dict[str, Trajectory] = {}
    for line in lines:
        trajectory = read_trajectory(parse_object(line), read)
        read[trajectory.id] = trajectory
    return list(read.values())


def encode_task(task: Task) -> dict[str, Any]:
    """Encode a task as a JSON object; its private data must be JSON values."""
    row = {"id": task.id, "prompt": task.prompt, "private": dict(task.private), "tags": dict(task.tags)}
    return row | ({"messages": [message.to_openai() for message in task.messages]} if task.messages else {})


def decode_task(row: Mapping[str, Any]) -> Task:
    """Decode a task that `encode_task` encoded.

    Raises:
        ValueError: If the object is not a task.
    """
    read = validate_shape(_TASK, row)
    messages = tuple(map(Message.from_openai, read.get("messages", ())))
    return Task(read["id"], read["prompt"], read["private"], read["tags"], messages)


def encode_turn(turn: Turn) -> dict[str, Any]:
    """Encode one turn with its messages as a JSON object."""
    messages = [to_writable(message.to_openai()) for message in (turn.message, *turn.observation)]
    return {"messages": messages, **_turn(turn), "calls": to_writable(_calls(turn))}


def decode_turn(row: Mapping[str, Any]) -> Turn:
    """Decode a turn that `encode_turn` encoded.

    Raises:
        ValueError: If the object is not a turn.
    """
    read = validate_shape(_TURN, row)
    messages = [Message.from_openai(message) for message in read.get("messages", ())]
    if not messages:
        raise ValueError("messages: a turn must have at least one message, got none")
    return _read_turn(read, messages[0], tuple(messages[1:]))


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    score = trajectory.score
    return {
        "id": trajectory.id,
        "task_id": trajectory.task_id,
        "ended": trajectory.ended,
        "error": trajectory.error,
        "score": None if score is None else _score(score),
        "removal": trajectory.removal,
        "parent": trajectory.parent,
        "fork_turn": trajectory.fork_turn,
        "greedy": trajectory.greedy,
        "provenance": trajectory.provenance,
        "marks": list(trajectory.marks),
        "declared": dict(trajectory.declared),
        **({"role": trajectory.role} if trajectory.role else {}),
        **({"member": trajectory.member} if trajectory.member else {}),
        **({"final": dict(trajectory.final)} if trajectory.final else {}),
        "off_policy": trajectory.off_policy,
        "seconds": round(trajectory.seconds, 6),
        "closing": None if trajectory.closing is None else _tokens(trajectory.closing),
        "messages": [message.to_openai() for message in trajectory.messages],
        "opening": len(trajectory.opening),
        "turns": [_turn(turn) for turn in trajectory.turns],
    }


def _score(score: Score) -> dict[str, Any]:
    turns = None if score.turns is None else list(score.turns)
    row: dict[str, Any] = {"value": score.value, "parts": dict(score.parts), "turns": turns, "success": score.success}
    if score.signals:
        row["signals"] = {name: list(values) for name, values in score.signals.items()}
    if score.judgements:
        row["judgements"] = [{"question": each.question, "said": dict(each.answer)} for each in score.judgements]
    return row


def _turn(turn: Turn) -> dict[str, Any]:
    """Encode a turn without its messages.

    The trajectory stores one message for the action, then `observation` further messages.
    """
    return {
        "context": _tokens(turn.context),
        "action": _tokens(turn.action),
        "observation": len(turn.observation),
        "reward": turn.reward,
        "calls": _calls(turn),
        "opens_segment": turn.opens_segment,
        "aside": turn.aside,
        **({"conversation": turn.conversation} if turn.conversation else {}),
        **({"agent": turn.agent} if turn.agent else {}),
        "training_context": None if turn.training_context is None else _tokens(turn.training_context),
        "seconds": [turn.generation_seconds, turn.queue_seconds, turn.environment_seconds],
    }


def _calls(turn: Turn) -> list[list[Any]]:
    return [_call(call) for call in turn.calls]


def _call(call: CallRecord) -> list[Any]:
    row = [call.name, call.outcome, round(call.seconds, 6), call.truncated, call.cost]
    if call.inner:
        inner = [[[*_call(each.record), ""][:6], each.arguments, each.result] for each in call.inner]
        return [*row, call.error, inner]
    return [*row, *filter(None, [call.error])]


def _tokens(tokens: Tokens) -> dict[str, Any]:
    """Encode token columns; empty columns are left out, and authors are run-length encoded."""
    written: dict[str, Any] = {
        "ids": list(tokens.ids),
        "authors": [[author, len(list(run))] for author, run in groupby(tokens.authors)],
    }
    if any(version != -1 for version in tokens.versions):
        written["versions"] = list(tokens.versions)
    for name, column in (("logprobs", tokens.logprobs), ("entropies", tokens.entropies)):
        if not all(map(math.isnan, column)):
            written[name] = _numbers(column)
    if tokens.measured:
        written["measured"] = {name: _numbers(column) for name, column in tokens.measured.items()}
    if tokens.media:
        written["media"] = [[each.start, each.length, each.digest] for each in tokens.media]
    return written


def _numbers(column: Sequence[float]) -> Sequence[float | str]:
    """Encode a column of numbers: infinities become text, and NaN becomes null."""
    return [str(v) if math.isinf(v) else v for v in column] if any(map(math.isinf, column)) else column


def check_row(written: dict[str, Any]) -> dict[str, Any]:
    """Check that a JSON object is an encoded trajectory, and return it unchanged.

    Raises:
        ValueError: If the object is not a trajectory; the message is one line.
    """
    validate_shape(_TRAJECTORY, written)
    return written


def read_trajectory(written: Mapping[str, Any], before: Mapping[str, Trajectory]) -> Trajectory:
    """Decode a trajectory from a JSON object.

    Args:
        written: JSON object that `encode_trajectory` wrote.
        before: Trajectories by id; if the trajectory is a fork, they must contain its parent.

    Raises:
        ValueError: If the object is not a trajectory; the message is one line.
    """
    row = validate_shape(_TRAJECTORY, written)
    messages = [Message.from_openai(message) for message in row["messages"]]
    opening, place = tuple(messages[: row["opening"]]), row["opening"]
    turns = []
    for turn in row["turns"]:
        end = place + 1 + turn["observation"]
        if end > len(messages):
            raise ValueError(f"messages: {len(messages)} messages are too few for the turns of the trajectory")
        turns.append(_read_turn(turn, messages[place], tuple(messages[place + 1 : end])))
        place = end
    parent = before.get(row["parent"]) if row["parent"] is not None else None
    if parent is not None:
        turns[: row["fork_turn"]] = parent.turns[: row["fork_turn"]]
    score, closing = row["score"], row.get("closing")
    return Trajectory(
        id=row["id"],
        task_id=row["task_id"],
        opening=opening,
        turns=tuple(turns),
        ended=row["ended"],
        error=row["error"],
        score=None if score is None else _read_score(score),
        removal=row["removal"],
        parent=row["parent"],
        fork_turn=row["fork_turn"],
        greedy=row.get("greedy", False),
        provenance=read_provenance(row),
        marks=tuple(mark for mark in row.get("marks", ()) if mark != "replayed"),
        declared=tuple(row.get("declared", {}).items()),
        role=row.get("role", ""),
        member=row.get("member", ""),
        final=row.get("final", {}),
        off_policy=row.get("off_policy", OffPolicy.RECOMPUTE),
        seconds=row["seconds"],
        closing=None if closing is None else _read_tokens(closing),
    )


def read_provenance(row: Mapping[str, Any]) -> Provenance:
    """Return the provenance of a stored trajectory.

    If an earlier release wrote the trajectory, its provenance is derived from marks and authors.
    """
    if "provenance" in row:
        return Provenance(row["provenance"])
    marks = row.get("marks") or ()
    if "replayed" in marks:
        return Provenance.REPLAYED
    if "intervened" in marks or "replaced" in marks:
        return Provenance.HUMAN
    actions = [turn.get("action") or {} for turn in row.get("turns") or ()]
    authors = {author for action in actions for author, _ in action.get("authors") or ()}
    return Provenance.DEMONSTRATED if authors == {Author.EXPERT} else Provenance.SAMPLED


def _read_score(row: _ScoreRow) -> Score:
    turns: Any = None if row["turns"] is None else tuple(row["turns"])
    signals: Any = {name: tuple(values) for name, values in row.get("signals", {}).items()}
    judgements = tuple(Judgement(each["question"], each["said"]) for each in row.get("judgements", ()))
    value: Any = row["value"]
    parts: Any = row["parts"]
    return Score(value, parts, turns, row["success"], signals, judgements=judgements)


def _read_turn(row: _TurnRow, message: Message, observation: tuple[Message, ...]) -> Turn:
    generation, queue, environment = row["seconds"]
    return Turn(
        context=_read_tokens(row["context"]),
        action=_read_tokens(row["action"]),
        message=message,
        observation=observation,
        reward=row["reward"],
        calls=tuple(map(_read_call, row["calls"])),
        opens_segment=row["opens_segment"],
        conversation=row.get("conversation", 0),
        agent=row.get("agent", ""),
        aside=row.get("aside", False),
        training_context=None if row["training_context"] is None else _read_tokens(row["training_context"]),
        generation_seconds=generation,
        queue_seconds=queue,
        environment_seconds=environment,
    )


def _read_call(row: Sequence[Any]) -> CallRecord:
    inner = tuple(InnerCall(CallRecord(*record), *texts) for record, *texts in chain.from_iterable(row[6:]))
    return replace(CallRecord(*row[:6]), inner=inner)


def _read_tokens(row: _TokensRow) -> Tokens:
    ids = tuple(row["ids"])
    if sum(count for _, count in row["authors"]) != len(ids):  # before any run is written out
        raise ValueError(f"authors: the run lengths must sum to the number of ids ({len(ids)})")
    authors = tuple(author for author, count in row["authors"] for _ in range(count))
    nothing = [None] * len(ids)
    logprobs, entropies = (_read_numbers(row.get(name, nothing)) for name in ("logprobs", "entropies"))
    measured = {name: _read_numbers(column) for name, column in row.get("measured", {}).items()}
    media = tuple(Media(*each) for each in row.get("media", ()))
    check_spans(media, len(ids))
    versions = tuple(row.get("versions", (-1,) * len(ids)))
    return Tokens(ids, authors, logprobs, versions, entropies, media, measured)


def _read_numbers(column: Any) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in column)
