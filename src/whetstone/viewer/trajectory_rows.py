"""Index row of a trajectory, extracted from its line of JSON.

Note:
    The line may be of an earlier or later version. Missing fields are empty and unknown ones ignored; only an id is
    required.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.tools.sanitize_text import sanitize_text

_GROUP = re.compile(r"group-(\d+)/")
_DIGITS = re.compile(r"\d+")
_EXCERPT = 160
_MAX_TEXT = 60_000
"""Maximum searchable characters of a trajectory; a tool can write millions."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One tool call of a trajectory in the index."""

    turn: int
    """Index of the turn, from 0."""
    name: str
    """Name of the tool."""
    outcome: str
    """Outcome, such as `ok` or `tool_error`."""
    seconds: float
    """Duration of the call."""
    truncated: bool
    """Whether the result was cut."""
    error: str
    """Error message; empty without an error."""


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """Row of a trajectory in the index; missing fields are empty."""

    id: str
    """Id of the trajectory."""
    task: str
    """Id of the task."""
    kind: str
    """Id of the task without its digits: tasks that differ only in numbers are of one kind."""
    group: int | None
    """Group in the run; None in evaluations."""
    reward: float | None
    """Outcome reward; None without a score."""
    success: bool | None
    """Whether the task was solved; None if unknown."""
    parts: Mapping[str, float]
    """Reward components by name."""
    ended: str
    """End reason."""
    error: str
    """Error of a failed episode; empty otherwise."""
    turns: int
    """Number of turns."""
    tokens: int
    """Number of tokens that the policy wrote."""
    seconds: float
    """Duration of the episode."""
    version: int | None
    """Version of the policy that sampled its first token."""
    parent: str | None
    """Id of the trajectory from which this one forked; None if it is no fork."""
    fork_turn: int | None
    """Number of turns in common with the parent; None without a parent."""
    role: str
    """Seat of the policy in a game with several."""
    marks: str
    """Marks of the trajectory, separated by spaces; empty without marks."""
    calls: tuple[CallRow, ...]
    """Tool calls in order."""
    excerpt: str
    """Start of the last message of the model."""
    text: str
    """Searchable text."""


def summarize_row(row: Mapping[str, Any]) -> TrajectoryRow:
    """Extract the index row from a trajectory as a JSON object.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: The object is not a trajectory.
    """
    id, task = str(row["id"]), str(row.get("task_id") or "")
    score = row.get("score") or {}
    turns: Sequence[Mapping[str, Any]] = row.get("turns") or ()
    texts = [text for message in row.get("messages") or () for text in message_texts(message)]
    group, success = _GROUP.match(id), score.get("success")
    actions = [turn.get("action") or {} for turn in turns]
    return TrajectoryRow(
        id=id,
        task=task,
        kind=task_kind(task),
        group=_parse_whole(int(group[1])) if group else None,
        reward=_number(score.get("value")),
        success=success if isinstance(success, bool) else None,
        parts={str(name): float(value) for name, value in (score.get("parts") or {}).items() if _is_number(value)},
        ended=str(row.get("ended") or ""),
        error=sanitize_text(str(row.get("error") or "")),
        turns=len(turns),
        tokens=sum(len(action.get("ids") or ()) for action in actions),
        seconds=_number(row.get("seconds")) or 0.0,
        version=_parse_whole(next((v for action in actions for v in (action.get("versions") or ())[:1]), None)),
        parent=str(row["parent"]) if row.get("parent") is not None else None,
        fork_turn=_parse_whole(row.get("fork_turn")),
        role=str(row.get("role") or ""),
        marks=" ".join(map(str, row.get("marks") or ())),
        calls=tuple(
            CallRow(
                number,
                str(call[0]),
                str(call[1]),
                float(call[2]),
                bool(call[3:4] and call[3]),
                sanitize_text(_error(call)),
            )
            for number, turn in enumerate(turns)
            for call in turn.get("calls") or ()
        ),
        excerpt=sanitize_text(" ".join(_last_answer(row).split())[:_EXCERPT]),
        text="\n".join(texts)[:_MAX_TEXT],
    )


def task_kind(task: str) -> str:
    """Return the id of a task without its digits.

    >>> task_kind("arithmetic/sum/12"), task_kind("7")
    ('arithmetic/sum', '')
    """
    return "/".join(part for part in _DIGITS.sub("", task).split("/") if part.strip("-_#. "))


def message_texts(message: Mapping[str, Any]) -> list[str]:
    """Return the texts of a message that can be searched: its content, and its tool calls."""
    content = message.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    for call in message.get("tool_calls") or ():
        texts.append(f"{call['function']['name']} {call['function']['arguments']}")
    return texts + [str(wrong) for wrong in message.get("malformed") or ()]


def _error(call: Sequence[Any]) -> str:
    return str(call[5]) if len(call) > 5 else ""


def _last_answer(row: Mapping[str, Any]) -> str:
    spoken = [message for message in row.get("messages") or () if message.get("role") == "assistant"]
    return " ".join(message_texts(spoken[-1])) if spoken else ""


def _parse_whole(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**62 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None
