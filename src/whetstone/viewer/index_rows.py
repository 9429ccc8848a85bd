"""Writes rows of the trajectory index, from trajectories and from journal events about their groups.

Note:
    A filter scans all rows, so that rows are narrow: names are numbers, texts are in a separate table, and each
    component of the reward is a column.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whetstone.json_lines import UNREADABLE, parse_object
from whetstone.viewer.trajectory_rows import TrajectoryRow, summarize_row

_MAX_COMPONENTS = 500
"""A table has at most 2,000 columns."""


def add_line(
    db: sqlite3.Connection,
    components: dict[str, str],
    line: bytes,
    at: tuple[str, int, int],
    part: str,
    step: int | None,
) -> None:
    """Add the row of a trajectory to the index; a line that is not a trajectory is stored as a problem.

    Args:
        db: Connection in a write transaction.
        components: Column of each component of the reward, by name; a new component gets a column.
        at: File, byte offset, and line number.
        step: Step of the trajectory if no update used it.
    """
    name, place, number = at
    try:
        summary = summarize_row(parse_object(line))
        if len({*components, *summary.parts}) > _MAX_COMPONENTS:
            raise ValueError(f"more than {_MAX_COMPONENTS} components of the reward")
    except UNREADABLE as error:
        store_problem(db, name, f"line {number} is not a trajectory ({type(error).__name__}) and is skipped")
        return
    kind = summary.kind
    if summary.group is not None:
        of_group = db.execute("SELECT step, kind FROM groups WHERE number = ?", (summary.group,)).fetchone()
        if of_group is not None:
            step, kind = of_group[0] or step, of_group[1] or kind
    columns: dict[str, Any] = {
        key: getattr(summary, key) for key in ("reward", "turns", "tokens", "seconds", "version")
    }
    columns |= {"step": step, "of_group": summary.group, "calls": len(summary.calls)}
    columns["success"] = None if summary.success is None else int(summary.success)
    names = {
        "part": part, "kind": kind, "ended": summary.ended, "tools": _join_names(call.name for call in summary.calls),
        "outcomes": _join_names(call.outcome for call in summary.calls), "marks": summary.marks, "task": summary.task,
        "file": name,
    }  # fmt: skip
    columns |= {key: _name(db, value) for key, value in names.items()}
    for component, value in summary.parts.items():
        if component not in components:
            components[component] = _column(db, len(components), component)
        columns[components[component]] = value
    marks = ", ".join("?" * len(columns))
    cursor = db.execute(f"INSERT INTO trajectories ({', '.join(columns)}) VALUES ({marks})", list(columns.values()))
    texts = (
        summary.id,
        summary.error,
        summary.parent,
        summary.fork_turn,
        summary.role,
        summary.excerpt,
        place,
        len(line),
    )
    db.execute("INSERT INTO texts_of VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (cursor.lastrowid, *texts))
    if summary.calls:
        calls = [
            (cursor.lastrowid, call.name, call.outcome, call.seconds, call.truncated, call.error)
            for call in summary.calls
        ]
        db.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?)", calls)
    db.execute("INSERT INTO texts (rowid, said) VALUES (?, ?)", (cursor.lastrowid, _searchable_text(summary)))


def _column(db: sqlite3.Connection, number: int, component: str) -> str:
    place = f"component_{number}"
    db.execute(f"ALTER TABLE trajectories ADD COLUMN {place} REAL")
    db.execute("INSERT INTO components VALUES (?, ?)", (component, place))
    return place


def index_journal_line(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    """Store the state of a group (consumed, lost, …) from a journal event.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, sqlite3.Error: The event is malformed.
    """
    what = event["event"]
    if what == "admitted":
        task = event.get("task")
        kind = str(task["tags"].get("kind", "")) if isinstance(task, dict) else ""
        db.execute("INSERT OR IGNORE INTO groups VALUES (?, NULL, 'under way', ?)", (event["group"], kind))
    elif what == "kept":
        _state(db, [event["group"]], "waiting", None)
    elif what == "lost":
        _state(db, [event["group"]], f"lost: {event['reason']}", None)
    elif what == "consumed":
        _state(db, event["groups"], "learned from", event["update"] + 1)
        _state(db, event.get("passed_over", ()), "passed over", event["update"] + 1)


def _state(db: sqlite3.Connection, numbers: Sequence[int], state: str, step: int | None) -> None:
    db.executemany("INSERT OR IGNORE INTO groups VALUES (?, NULL, '', '')", [(number,) for number in numbers])
    db.executemany(
        "UPDATE groups SET state = ?, step = coalesce(?, step) WHERE number = ?",
        [(state, step, number) for number in numbers],
    )
    if step is not None:
        moved = [(step, number, step) for number in numbers]
        db.executemany("UPDATE trajectories SET step = ? WHERE of_group = ? AND step IS NOT ?", moved)


def store_problem(db: sqlite3.Connection, file: str, problem: str) -> None:
    """Store a problem of a file in the index; a problem that is already stored has no effect."""
    existing = db.execute("SELECT 1 FROM remarks WHERE file = ? AND said = ?", (file, problem)).fetchone()
    if existing is None:
        db.execute("INSERT INTO remarks VALUES (?, ?)", (file, problem))


def _name(db: sqlite3.Connection, name: str) -> int:
    """Return the number under which a name is stored; a new name is added."""
    row = db.execute("SELECT number FROM names WHERE name = ?", (name,)).fetchone()
    if row is None:
        row = db.execute("INSERT INTO names (name) VALUES (?) RETURNING number", (name,)).fetchone()
    return int(row[0])


def _join_names(names: Iterable[str]) -> str:
    """Join unique names as `|search|sum|`, so that SQL can search for one; empty without names."""
    unique = dict.fromkeys(names)
    return f"|{'|'.join(unique)}|" if unique else ""


def _searchable_text(summary: TrajectoryRow) -> str:
    return f"{summary.text}\n{summary.error}\n{summary.task}"
