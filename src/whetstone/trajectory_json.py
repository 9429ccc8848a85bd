"""How is a trajectory written as JSON? Messages to read, token columns to compute with.

Easy to get wrong: JSON has no NaN, so a log-prob nobody drew is null, and one of −inf is a word; and a forked
trajectory must get its parent's turns back, the same objects, or the tree is lost on disk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import orjson

from whetstone.chat.message import Message
from whetstone.trajectory import (
    Author,
    CallRecord,
    EndReason,
    Judgement,
    OffPolicy,
    RemovalScope,
    Score,
    Task,
    Tokens,
    Trajectory,
    Turn,
)

_HALF = re.compile("[\ud800-\udfff]")
"""One half of a pair that makes a letter: JSON's escapes can say it, UTF-8 cannot write it."""


def encoded_trajectory(trajectory: Trajectory) -> bytes:
    """A line of JSON, without its end; what a model said that cannot be written shows as `�`."""
    row = _trajectory(trajectory)
    try:
        return orjson.dumps(row)
    except TypeError:
        return orjson.dumps(writable(row))


def writable(value: Any) -> Any:
    """The same in texts, lists and mappings that can be written: each half of a letter is a `�`, and a whole number of
    more than 64 bits its hexadecimal digits."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {writable(key): writable(one) for key, one in value.items()}
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return hex(value)
    return [writable(one) for one in value] if isinstance(value, list | tuple) else value


def decoded_trajectories(lines: Iterable[bytes]) -> list[Trajectory]:
    """What `encoded_trajectory` made of them. Forks share their parent's turns where the parent stands before them.

    Raises:
        ValueError, KeyError, TypeError, IndexError: A line is no trajectory.
    """
    read: dict[str, Trajectory] = {}
    for line in lines:
        trajectory = read_trajectory(orjson.loads(line), read)
        read[trajectory.id] = trajectory
    return list(read.values())


def encoded_task(task: Task) -> dict[str, Any]:
    """A task as JSON can hold it; what is private must be such."""
    return {"id": task.id, "prompt": task.prompt, "private": dict(task.private), "tags": dict(task.tags)}


def decoded_task(row: Mapping[str, Any]) -> Task:
    """What `encoded_task` made of it."""
    return Task(row["id"], row["prompt"], row["private"], row["tags"])


def encoded_turn(turn: Turn) -> dict[str, Any]:
    """A turn by itself, with its messages, as JSON can hold it."""
    messages = [writable(message.to_openai()) for message in (turn.message, *turn.observation)]
    return {"messages": messages, **_turn(turn), "calls": writable(_calls(turn))}


def decoded_turn(row: Mapping[str, Any]) -> Turn:
    """What `encoded_turn` made of it."""
    message, *observation = map(Message.from_openai, row["messages"])
    return _read_turn(row, message, tuple(observation))


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
        "marks": list(trajectory.marks),
        "declared": dict(trajectory.declared),
        **({"role": trajectory.role} if trajectory.role else {}),
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
    said: dict[str, Any] = {"value": score.value, "parts": dict(score.parts), "turns": turns, "success": score.success}
    if score.signals:
        said["signals"] = {name: list(values) for name, values in score.signals.items()}
    if score.judgements:
        said["judgements"] = [{"question": each.question, "said": dict(each.said)} for each in score.judgements]
    return said


def _turn(turn: Turn) -> dict[str, Any]:
    """Messages are not repeated here: the action is one, behind it come `observation` many."""
    return {
        "context": _tokens(turn.context),
        "action": _tokens(turn.action),
        "observation": len(turn.observation),
        "reward": turn.reward,
        "calls": _calls(turn),
        "opens_segment": turn.opens_segment,
        "aside": turn.aside,
        "training_context": None if turn.training_context is None else _tokens(turn.training_context),
        "seconds": [turn.generation_seconds, turn.queue_seconds, turn.environment_seconds],
    }


def _calls(turn: Turn) -> list[list[Any]]:
    return [[call.name, call.outcome, round(call.seconds, 6), call.truncated, call.cost] for call in turn.calls]


def _tokens(tokens: Tokens) -> dict[str, Any]:
    """Columns; those in which nothing is known are left out, and authors are written as runs."""
    written: dict[str, Any] = {
        "ids": list(tokens.ids),
        "authors": [[author, len(list(run))] for author, run in groupby(tokens.authors)],
    }
    if any(version != -1 for version in tokens.versions):
        written["versions"] = list(tokens.versions)
    for name in ("logprobs", "entropies"):
        column: Sequence[float] = getattr(tokens, name)
        if not all(map(math.isnan, column)):
            # JSON has no numbers that are not finite: NaN is written as null, infinity as a word
            written[name] = [str(v) if math.isinf(v) else v for v in column] if any(map(math.isinf, column)) else column
    return written


def read_trajectory(row: Mapping[str, Any], before: Mapping[str, Trajectory]) -> Trajectory:
    """A trajectory from its row; `before` are those it may have parted from, by id."""
    messages = [Message.from_openai(message) for message in row["messages"]]
    opening, place = tuple(messages[: row["opening"]]), row["opening"]
    turns = []
    for turn in row["turns"]:
        end = place + 1 + turn["observation"]
        turns.append(_read_turn(turn, messages[place], tuple(messages[place + 1 : end])))
        place = end
    parent = before.get(row["parent"]) if row["parent"] is not None else None
    if parent is not None:
        turns[: row["fork_turn"]] = parent.turns[: row["fork_turn"]]
    score = row["score"]
    return Trajectory(
        id=row["id"],
        task_id=row["task_id"],
        opening=opening,
        turns=tuple(turns),
        ended=EndReason(row["ended"]),
        error=row["error"],
        score=None if score is None else _read_score(score),
        removal=None if row["removal"] is None else RemovalScope(row["removal"]),
        parent=row["parent"],
        fork_turn=row["fork_turn"],
        greedy=row.get("greedy", False),
        marks=tuple(row.get("marks", ())),
        declared=tuple(row.get("declared", {}).items()),
        role=row.get("role", ""),
        final=row.get("final", {}),
        off_policy=OffPolicy(row.get("off_policy", OffPolicy.RECOMPUTE)),
        seconds=row["seconds"],
        closing=None if row.get("closing") is None else _read_tokens(row["closing"]),
    )


def _read_score(row: Mapping[str, Any]) -> Score:
    turns = None if row["turns"] is None else tuple(row["turns"])
    signals = {name: tuple(values) for name, values in row.get("signals", {}).items()}
    judgements = tuple(Judgement(each["question"], each["said"]) for each in row.get("judgements", ()))
    return Score(row["value"], row["parts"], turns, row["success"], signals, judgements=judgements)


def _read_turn(row: Mapping[str, Any], message: Message, observation: tuple[Message, ...]) -> Turn:
    generation, queue, environment = row["seconds"]
    return Turn(
        context=_read_tokens(row["context"]),
        action=_read_tokens(row["action"]),
        message=message,
        observation=observation,
        reward=row["reward"],
        calls=tuple(CallRecord(*call) for call in row["calls"]),
        opens_segment=row["opens_segment"],
        aside=row.get("aside", False),
        training_context=None if row["training_context"] is None else _read_tokens(row["training_context"]),
        generation_seconds=generation,
        queue_seconds=queue,
        environment_seconds=environment,
    )


def _read_tokens(row: Mapping[str, Any]) -> Tokens:
    ids = tuple(row["ids"])
    authors = tuple(Author(author) for author, count in row["authors"] for _ in range(count))
    nothing = (None,) * len(ids)
    logprobs, entropies = (
        tuple(math.nan if value is None else float(value) for value in row.get(name, nothing))
        for name in ("logprobs", "entropies")
    )
    return Tokens(ids, authors, logprobs, tuple(row.get("versions", (-1,) * len(ids))), entropies)
