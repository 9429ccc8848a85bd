"""What is to be known of a trajectory before it is opened? One row, from its line of JSON.

Easy to get wrong: the line may be of a version before or behind this one. What is missing is nothing, what is more is
passed over; only an id makes it a trajectory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.tools.plain_text import plain

_GROUP = re.compile(r"group-(\d+)/")
_DIGITS = re.compile(r"\d+")
_EXCERPT = 160
_MOST_TEXT = 60_000
"""Characters of a trajectory that are searched; a tool can write millions."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One tool call."""

    turn: int
    name: str
    outcome: str
    seconds: float
    truncated: bool
    error: str


@dataclass(frozen=True, slots=True)
class Summarised:
    """A trajectory in the index."""

    id: str
    task: str
    kind: str
    """The task's id with its digits gone: tasks that differ in numbers alone are of one kind."""
    group: int | None
    """Of a run's groups; None in evaluations."""
    reward: float | None
    success: bool | None
    parts: Mapping[str, float]
    ended: str
    error: str
    turns: int
    tokens: int
    """That the policy wrote."""
    seconds: float
    version: int | None
    """Of the policy that drew its first token."""
    parent: str | None
    fork_turn: int | None
    role: str
    marks: str
    calls: tuple[CallRow, ...]
    excerpt: str
    """How the last thing the model said begins."""
    text: str
    """What is searched."""


def summarised(row: Mapping[str, Any]) -> Summarised:
    """The row of a line that was read.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: It is no trajectory.
    """
    id, task = str(row["id"]), str(row.get("task_id") or "")
    score = row.get("score") or {}
    turns: Sequence[Mapping[str, Any]] = row.get("turns") or ()
    texts = [text for message in row.get("messages") or () for text in texts_of(message)]
    group, success = _GROUP.match(id), score.get("success")
    actions = [turn.get("action") or {} for turn in turns]
    return Summarised(
        id=id,
        task=task,
        kind=kind_of(task),
        group=_whole(int(group[1])) if group else None,
        reward=_number(score.get("value")),
        success=success if isinstance(success, bool) else None,
        parts={str(name): float(value) for name, value in (score.get("parts") or {}).items() if _is_number(value)},
        ended=str(row.get("ended") or ""),
        error=plain(str(row.get("error") or "")),
        turns=len(turns),
        tokens=sum(len(action.get("ids") or ()) for action in actions),
        seconds=_number(row.get("seconds")) or 0.0,
        version=_whole(next((v for action in actions for v in (action.get("versions") or ())[:1]), None)),
        parent=str(row["parent"]) if row.get("parent") is not None else None,
        fork_turn=_whole(row.get("fork_turn")),
        role=str(row.get("role") or ""),
        marks=" ".join(map(str, row.get("marks") or ())),
        calls=tuple(
            CallRow(
                number, str(call[0]), str(call[1]), float(call[2]), bool(call[3:4] and call[3]), plain(_error(call))
            )
            for number, turn in enumerate(turns)
            for call in turn.get("calls") or ()
        ),
        excerpt=plain(" ".join(_last_said(row).split())[:_EXCERPT]),
        text="\n".join(texts)[:_MOST_TEXT],
    )


def kind_of(task: str) -> str:
    """The id of a task with its digits gone.

    >>> kind_of("arithmetic/sum/12"), kind_of("7")
    ('arithmetic/sum', '')
    """
    return "/".join(part for part in _DIGITS.sub("", task).split("/") if part.strip("-_#. "))


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """What a message says, and what it calls."""
    content = message.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    said = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    for call in message.get("tool_calls") or ():
        said.append(f"{call['function']['name']} {call['function']['arguments']}")
    return said + [str(wrong) for wrong in message.get("malformed") or ()]


def _error(call: Sequence[Any]) -> str:
    return str(call[5]) if len(call) > 5 else ""


def _last_said(row: Mapping[str, Any]) -> str:
    spoken = [message for message in row.get("messages") or () if message.get("role") == "assistant"]
    return " ".join(texts_of(spoken[-1])) if spoken else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**62 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None
