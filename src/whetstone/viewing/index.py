"""Which trajectories has a run, and where? An index beside it, that grows while the run writes.

It is a file of SQLite in the user's cache, never in the run: whoever looks at a run changes nothing of it, and a folder
that is only read is no other case. It can be made again at any time, and is, where a file is not what was read before.

Easy to get wrong: the last line of a file may be half written. It is read when it is whole. And a run that was killed
and goes on writes again where the kill left half a group, so what stands before the place that was read to is compared.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whetstone.cache_folder import cache_folder
from whetstone.chat.api.asked import RefusedError
from whetstone.json_lines import UNREADABLE, iterate_lines, parse_object
from whetstone.viewing.indexing import TABLES, add_line, hear, remark
from whetstone.viewing.run_files import RunFiles
from whetstone.viewing.wanted import Wanted

_FORM = 2
"""Of the tables; an index of another is made again."""
_SLICE_SECONDS = 0.4
"""Between two commits; so long somebody who asks may wait for a lock, and so old is what he sees."""
_MAX_LINE_BYTES = 64 * 2**20
_COMPARED = 4096
"""Bytes at the beginning and before the end of what was read, that must still be there."""
_NAMED = ("part", "kind", "ended", "tools", "outcomes", "marks", "task", "file")
"""Columns that hold the number of a name: rows are narrow, and a filter passes over all of them."""
_NUMBERS = ("step", "reward", "success", "turns", "calls", "tokens", "seconds", "version", "of_group")
_TEXTS = ("id", "error", "parent", "fork_turn", "role", "excerpt", "place", "length")


@dataclass(frozen=True, slots=True)
class Page:
    """What was found, and the part of it that was asked for."""

    count: int
    reward: float | None
    """Mean of those that have one."""
    success: float | None
    """Share of those of which it is known."""
    rows: list[dict[str, Any]]
    """With the reward's components under `parts`."""


class TrajectoryIndex:
    """The index of one run.

    Args:
        run_dir: The run.
        folder: Where indexes are kept; the user's cache unless said. Where nothing can be written, a folder that goes
            with the process.
        follow_symlinks: Whether a symbolic link may lead out of the run.
    """

    def __init__(self, run_dir: Path, *, folder: Path | None = None, follow_symlinks: bool = False) -> None:
        self.run_dir = run_dir.resolve()
        self._run_files = RunFiles(self.run_dir, follow_symlinks)
        name = f"{hashlib.sha256(str(self.run_dir).encode()).hexdigest()[:24]}.sqlite"
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._refreshing = threading.Lock()
        try:
            self.path = (folder or cache_folder() / "viewer") / name
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._prepare()
        except (OSError, sqlite3.OperationalError):
            self._own = tempfile.TemporaryDirectory(prefix="whetstone-view-")
            self.path = Path(self._own.name) / name
            self._prepare()

    @property
    def is_kept(self) -> bool:
        """Whether the index is there for the next time."""
        return self._own is None

    def close(self) -> None:
        """Let go of what goes with the process."""
        if self._own is not None:
            self._own.cleanup()

    # ------------------------------------------------------------ building

    def refresh(self, *, most_seconds: float | None = None) -> bool:
        """Read what the run has written since.

        Args:
            most_seconds: After which the rest is left for the next time.

        Returns:
            Whether all of it was read.
        """
        until = time.monotonic() + most_seconds if most_seconds is not None else None
        with self._refreshing:
            self._read_journal()
            for path in self._files():
                while self._read_some(path):
                    if until is not None and time.monotonic() > until:
                        return False
        return True

    def left(self) -> tuple[int, int]:
        """(bytes of trajectories that were read, bytes there are)"""
        with self._connected() as db:
            done = dict(db.execute("SELECT name, done FROM files"))
        sizes = {path.name: path.stat().st_size for path in self._files() if path.is_file()}
        return sum(min(done.get(name, 0), size) for name, size in sizes.items()), sum(sizes.values())

    def _files(self) -> list[Path]:
        folder = self.run_dir / "trajectories"
        return sorted(folder.glob("*.jsonl")) if folder.is_dir() else []

    def _read_some(self, path: Path) -> bool:
        """Read what a slice of time allows; whether there may be more."""
        began = time.monotonic()
        try:
            file = self._run_files.open(path)
        except OSError as error:
            with self._writing() as db:
                remark(db, path.name, f"cannot be read: {error.strerror}")
            return False
        with closing(file), self._writing() as db:
            done, lines = self._gone_on(db, file, path.name)
            part, step = _place_of(path.stem)
            components = self._components(db)
            file.seek(done)
            for line in iterate_lines(file, number=lines, offset=done, max_bytes=_MAX_LINE_BYTES):
                if line.is_too_long:
                    problem = f"line {line.number} is longer than {_MAX_LINE_BYTES} bytes; the rest is left out"
                    remark(db, path.name, problem)
                if not line.content.endswith(b"\n"):
                    break
                if line.content.strip():
                    add_line(db, components, line.content, (path.name, line.offset, line.number), part, step)
                done, lines = line.offset + len(line.content), line.number
                if time.monotonic() - began > _SLICE_SECONDS:
                    self._read_to(db, file, path.name, done, lines)
                    return True
            self._read_to(db, file, path.name, done, lines)
        return False

    def _gone_on(self, db: sqlite3.Connection, file: Any, name: str) -> tuple[int, int]:
        """(bytes, lines) that were read before and are still the same; where they are not, what was of them is gone."""
        known = db.execute("SELECT done, lines, head, tail FROM files WHERE name = ?", (name,)).fetchone()
        if known is None:
            return 0, 0
        done, lines, head, tail = known
        if _compared(file, done) == (head, tail):
            return done, lines
        held = "SELECT number FROM trajectories WHERE file = (SELECT number FROM names WHERE name = ?)"
        db.execute(f"DELETE FROM calls WHERE trajectory IN ({held})", (name,))
        db.execute(f"DELETE FROM texts_of WHERE number IN ({held})", (name,))
        db.execute(f"DELETE FROM trajectories WHERE number IN ({held})", (name,))
        db.execute("DELETE FROM remarks WHERE file = ?", (name,))
        return 0, 0

    def _read_to(self, db: sqlite3.Connection, file: Any, name: str, done: int, lines: int) -> None:
        known = db.execute("SELECT done FROM files WHERE name = ?", (name,)).fetchone()
        if known is None or known[0] != done:
            row = (name, done, lines, *_compared(file, done))
            db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", row)

    def _read_journal(self) -> None:
        """Which update took which group."""
        path = self.run_dir / "store" / "journal.jsonl"
        if not path.is_file():
            return
        try:
            file = self._run_files.open(path)
        except OSError as error:
            with self._writing() as db:
                remark(db, path.name, f"cannot be read: {error.strerror}")
            return
        with closing(file), self._writing() as db:
            before = db.execute("SELECT done, lines, head, tail FROM files WHERE name = ?", (path.name,)).fetchone()
            done, lines = before[:2] if before is not None else (0, 0)
            if before is not None and _compared(file, done) != tuple(before[2:]):
                done = lines = 0
                db.execute("DELETE FROM groups")
                db.execute("DELETE FROM remarks WHERE file = ?", (path.name,))
            file.seek(done)
            for line in iterate_lines(file, number=lines, offset=done, max_bytes=_MAX_LINE_BYTES):
                if not line.content.endswith(b"\n"):
                    break
                done, lines = line.offset + len(line.content), line.number
                try:
                    hear(db, parse_object(line.content))
                except (*UNREADABLE, sqlite3.Error) as error:
                    remark(db, path.name, f"line {lines} is no event ({type(error).__name__}) and is left out")
            self._read_to(db, file, path.name, done, lines)

    # ------------------------------------------------------------ asking

    def page(self, wanted: Wanted) -> Page:
        """The trajectories that are wanted.

        Raises:
            RefusedError: Something is asked that cannot be answered.
        """
        with self._connected() as db:
            components = self._components(db)
            where, bound = wanted.condition(components)
            order = wanted.order(components)
            try:
                count, reward, success = db.execute(
                    f"SELECT count(*), avg(reward), avg(success) FROM trajectories t WHERE {where}", bound
                ).fetchone()
                found = db.execute(
                    f"SELECT number FROM trajectories t WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
                    [*bound, wanted.limit, wanted.offset],
                ).fetchall()
            except sqlite3.OperationalError as error:
                raise RefusedError(f"the index cannot answer that: {error}") from None
            rows = _rows(db, components, [number for (number,) in found])
        return Page(count, reward, success, rows)

    def choices(self) -> dict[str, Any]:
        """What there is to choose from: parts, kinds, endings, tools, outcomes, components, and the range of steps."""
        with self._connected() as db:
            told: dict[str, Any] = {}
            for name in ("part", "kind", "ended"):
                asked = (
                    f"SELECT n.name, c FROM (SELECT {name} AS k, count(*) AS c FROM trajectories GROUP BY 1) "
                    "JOIN names n ON n.number = k WHERE n.name != '' ORDER BY c DESC LIMIT 60"
                )
                told[name] = [list(row) for row in db.execute(asked)]
            for name, key in (("tool", "name"), ("outcome", "outcome")):
                asked = f"SELECT {key}, count(*) FROM calls GROUP BY 1 ORDER BY 2 DESC LIMIT 60"
                told[name] = [list(row) for row in db.execute(asked)]
            told["components"] = sorted(self._components(db))
            told["steps"] = list(db.execute("SELECT min(step), max(step) FROM trajectories").fetchone())
        return told

    def one(self, id: str, part: str) -> dict[str, Any]:
        """The row of one trajectory.

        Raises:
            RefusedError: There is none of this id in this part.
        """
        with self._connected() as db:
            found = db.execute(
                "SELECT number FROM texts_of JOIN trajectories USING (number) "
                "WHERE id = ? AND part = (SELECT number FROM names WHERE name = ?)",
                (id, part),
            ).fetchall()
            rows = _rows(db, self._components(db), [number for (number,) in found])
        if not rows:
            raise RefusedError(f"no trajectory {id[:200]} in {part[:80]}", status=404)
        return rows[-1]

    def line(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What a row's line says.

        Raises:
            RefusedError: It is no longer there.
        """
        path = self.run_dir / "trajectories" / row["file"]
        try:
            with self._run_files.open(path) as file:
                file.seek(row["place"])
                found = parse_object(file.read(row["length"]))
            if str(found.get("id")) == row["id"]:
                return found
        except (OSError, ValueError):
            pass
        raise RefusedError(f"{path.name}: is not what was indexed; it is read again", status=409)

    def mates(self, group: int) -> list[dict[str, Any]]:
        """The rows of all trajectories of a group, as they were written."""
        with self._connected() as db:
            found = db.execute("SELECT number FROM trajectories WHERE of_group = ? ORDER BY 1", (group,)).fetchall()
            return _rows(db, self._components(db), [number for (number,) in found])

    def state_of(self, group: int) -> str:
        """What became of a group; empty where nobody knows."""
        with self._connected() as db:
            found = db.execute("SELECT state FROM groups WHERE number = ?", (group,)).fetchone()
        return str(found[0]) if found is not None else ""

    def remarks(self) -> list[str]:
        """What in the run's files cannot be read."""
        with self._connected() as db:
            return [f"{file}: {said}" for file, said in db.execute("SELECT file, said FROM remarks LIMIT 50")]

    def count(self) -> int:
        """How many trajectories are in it."""
        with self._connected() as db:
            return int(db.execute("SELECT count(*) FROM trajectories").fetchone()[0])

    def calls(self) -> list[tuple[str, str, int | None, float, int, str]]:
        """(tool, outcome, step, seconds, whether the result was cut, error message) of every call of training."""
        with self._connected() as db:
            return db.execute(
                "SELECT c.name, c.outcome, t.step, c.seconds, c.truncated, c.error FROM calls c "
                f"JOIN trajectories t ON t.number = c.trajectory WHERE t.part = {_TRAINING}"
            ).fetchall()

    def of_steps(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """(step, line) of each trajectory of training in these steps."""
        with self._connected() as db:
            rows = db.execute(
                "SELECT id, step, n.name, place, length FROM trajectories t JOIN texts_of USING (number) "
                f"JOIN names n ON n.number = t.file WHERE t.part = {_TRAINING} AND step BETWEEN ? AND ? "
                "ORDER BY step, t.number",
                (first, last),
            ).fetchall()
        for id, step, file, place, length in rows:
            yield step, self.line({"id": id, "file": file, "place": place, "length": length})

    # ------------------------------------------------------------ the file

    def _prepare(self) -> None:
        """A file with this version's tables."""
        try:
            with self._connected() as db:
                form = db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            form = -1
        if form == _FORM:
            return
        for path in (self.path, *(self.path.with_name(f"{self.path.name}-{end}") for end in ("wal", "shm"))):
            path.unlink(missing_ok=True)
        with self._connected() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            if db.execute("PRAGMA user_version").fetchone()[0] == _FORM:  # another process was quicker
                db.execute("ROLLBACK")
                return
            for statement in TABLES.strip().split(";\n"):
                db.execute(statement.rstrip(";"))
            db.execute("INSERT INTO about VALUES (?)", (str(self.run_dir),))
            db.execute(f"PRAGMA user_version = {_FORM}")
            db.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as db:
            db.execute("PRAGMA mmap_size = 1000000000")
            db.execute("PRAGMA synchronous = OFF")  # what is lost is made again
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """All of it, or nothing; one process at a time."""
        with self._connected() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _components(self, db: sqlite3.Connection) -> dict[str, str]:
        return dict(db.execute("SELECT name, place FROM components").fetchall())


_TRAINING = "(SELECT number FROM names WHERE name = 'training')"


def told(page: Page) -> dict[str, Any]:
    """A page as JSON."""
    return asdict(page)


def _rows(db: sqlite3.Connection, components: Mapping[str, str], numbers: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of these numbers, in this order, with names and texts; parts of the reward under `parts`."""
    names = [f"(SELECT name FROM names WHERE number = t.{key}) AS {key}" for key in _NAMED]
    columns = ", ".join(("t.number AS number", *_NUMBERS, *_TEXTS, *names, *components.values()))
    marks = ", ".join("?" * len(numbers))
    cursor = db.execute(
        f"SELECT {columns} FROM trajectories t JOIN texts_of x ON x.number = t.number WHERE t.number IN ({marks})",
        list(numbers),
    )
    keys = [column[0] for column in cursor.description]
    found = {}
    for values in cursor:
        row = dict(zip(keys, values, strict=True))
        parts = {name: row.pop(place) for name, place in components.items()}
        row["parts"] = {name: value for name, value in parts.items() if value is not None}
        found[row["number"]] = row
    return [found[number] for number in numbers]


def _place_of(stem: str) -> tuple[str, int | None]:
    """(part, step) of a file of trajectories.

    `step-000003` is training; `evaluation-untrained` was before it; `evaluation-reinforcement-000005` behind step 5.
    """
    if stem.startswith("step-"):
        number = stem.removeprefix("step-")
        return "training", _step_of(number)
    name = stem.removeprefix("evaluation-")
    step = name.rpartition("-")[2]
    if name == "untrained":
        return f"evaluation {name}", 0
    return f"evaluation {name}", _step_of(step) if len(step) >= 6 else None


def _step_of(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) <= 12 else None


def _compared(file: Any, done: int) -> tuple[int, int]:
    """Checksums of the beginning and of what stands before a place."""
    file.seek(0)
    head = zlib.crc32(file.read(min(_COMPARED, done)))
    file.seek(max(0, done - _COMPARED))
    return head, zlib.crc32(file.read(min(_COMPARED, done)))
