"""How does a line of a run become rows of its index? Trajectories, and what the journal says became of their groups.

Easy to get wrong: a filter passes over all rows, so they are narrow: names are numbers, texts stand in a table of their
own, and each component of the reward is a column.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whetstone.json_lines import UNREADABLE, parse_object
from whetstone.viewing.summarised import Summarised, summarised

TABLES = """
CREATE TABLE about (run TEXT);
CREATE TABLE files (name TEXT PRIMARY KEY, done INTEGER, lines INTEGER, head INTEGER, tail INTEGER);
CREATE TABLE groups (number INTEGER PRIMARY KEY, step INTEGER, state TEXT, kind TEXT);
CREATE TABLE components (name TEXT PRIMARY KEY, place TEXT);
CREATE TABLE remarks (file TEXT, said TEXT);
CREATE TABLE trajectories (
  number INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER, reward REAL, success INTEGER, turns INTEGER, calls INTEGER,
  tokens INTEGER, seconds REAL, version INTEGER, of_group INTEGER, part INTEGER, kind INTEGER, ended INTEGER,
  tools INTEGER, outcomes INTEGER, marks INTEGER, task INTEGER, file INTEGER);
CREATE TABLE texts_of (
  number INTEGER PRIMARY KEY, id TEXT, error TEXT, parent TEXT, fork_turn INTEGER, role TEXT, excerpt TEXT,
  place INTEGER, length INTEGER);
CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE INDEX by_id ON texts_of (id);
CREATE INDEX by_step ON trajectories (step);
CREATE INDEX by_task ON trajectories (task);
CREATE INDEX by_group ON trajectories (of_group);
CREATE INDEX by_file ON trajectories (file);
CREATE TABLE calls (
  trajectory INTEGER, name TEXT, outcome TEXT, seconds REAL, truncated INTEGER, error TEXT);
CREATE VIRTUAL TABLE texts USING fts5 (said, content='');
"""

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
    """Add a trajectory; a line that is none is remarked on, and left out.

    Args:
        components: By name, the column of each part of the reward; one that is new gets one.
        at: The file, the place in it, and the number of the line.
        step: Where no update took it.
    """
    name, place, number = at
    try:
        found = summarised(parse_object(line))
        if len({*components, *found.parts}) > _MAX_COMPONENTS:
            raise ValueError(f"more than {_MAX_COMPONENTS} components of the reward")
    except UNREADABLE as error:
        remark(db, name, f"line {number} is no trajectory ({type(error).__name__}) and is left out")
        return
    kind = found.kind
    if found.group is not None:
        of_group = db.execute("SELECT step, kind FROM groups WHERE number = ?", (found.group,)).fetchone()
        if of_group is not None:
            step, kind = of_group[0] or step, of_group[1] or kind
    columns: dict[str, Any] = {key: getattr(found, key) for key in ("reward", "turns", "tokens", "seconds", "version")}
    columns |= {"step": step, "of_group": found.group, "calls": len(found.calls)}
    columns["success"] = None if found.success is None else int(found.success)
    names = {
        "part": part, "kind": kind, "ended": found.ended, "tools": _piped(call.name for call in found.calls),
        "outcomes": _piped(call.outcome for call in found.calls), "marks": found.marks, "task": found.task,
        "file": name,
    }  # fmt: skip
    columns |= {key: _name(db, value) for key, value in names.items()}
    for component, value in found.parts.items():
        if component not in components:
            components[component] = _column(db, len(components), component)
        columns[components[component]] = value
    marks = ", ".join("?" * len(columns))
    cursor = db.execute(f"INSERT INTO trajectories ({', '.join(columns)}) VALUES ({marks})", list(columns.values()))
    texts = (found.id, found.error, found.parent, found.fork_turn, found.role, found.excerpt, place, len(line))
    db.execute("INSERT INTO texts_of VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (cursor.lastrowid, *texts))
    if found.calls:
        calls = [
            (cursor.lastrowid, call.name, call.outcome, call.seconds, call.truncated, call.error)
            for call in found.calls
        ]
        db.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?)", calls)
    db.execute("INSERT INTO texts (rowid, said) VALUES (?, ?)", (cursor.lastrowid, _searched(found)))


def _column(db: sqlite3.Connection, number: int, component: str) -> str:
    place = f"component_{number}"
    db.execute(f"ALTER TABLE trajectories ADD COLUMN {place} REAL")
    db.execute("INSERT INTO components VALUES (?, ?)", (component, place))
    return place


def hear(db: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    """Note what an event of the journal says of a group.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, sqlite3.Error: It is none.
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


def remark(db: sqlite3.Connection, file: str, said: str) -> None:
    """Note, once, what is wrong with a file."""
    there = db.execute("SELECT 1 FROM remarks WHERE file = ? AND said = ?", (file, said)).fetchone()
    if there is None:
        db.execute("INSERT INTO remarks VALUES (?, ?)", (file, said))


def _name(db: sqlite3.Connection, name: str) -> int:
    """The number of a name."""
    found = db.execute("SELECT number FROM names WHERE name = ?", (name,)).fetchone()
    if found is None:
        found = db.execute("INSERT INTO names (name) VALUES (?) RETURNING number", (name,)).fetchone()
    return int(found[0])


def _piped(names: Iterable[str]) -> str:
    """`|search|sum|`, each once; empty where there are none."""
    found = dict.fromkeys(names)
    return f"|{'|'.join(found)}|" if found else ""


def _searched(found: Summarised) -> str:
    return f"{found.text}\n{found.error}\n{found.task}"
