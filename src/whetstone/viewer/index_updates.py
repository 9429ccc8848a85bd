"""Updates of an index of trajectories with the lines that a run has written since.

Note:
    The last line of a file may be incomplete; it is read once it is complete. A run that was killed and resumed writes
    over the incomplete group, so the content before the position that was read to is compared.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from whetstone.json_lines import UNREADABLE, iterate_lines, parse_object
from whetstone.viewer.index_file import IndexFile, read_components
from whetstone.viewer.index_rows import add_line, index_journal_line, store_problem
from whetstone.viewer.run_files import RunFiles

_SLICE_SECONDS = 0.4
"""Time between two commits: the wait of a reader for a lock, and the age of its result."""
_MAX_LINE_BYTES = 64 * 2**20
_COMPARED = 4096
"""Bytes that are compared at the start and before the end of the part that is read."""


class IndexUpdates:
    """Keeps the index of a run up to date with its trajectory files and its journal.

    Args:
        run_dir: The run.
        run_files: Opens its files.
        file: File of the index.
    """

    def __init__(self, run_dir: Path, run_files: RunFiles, file: IndexFile) -> None:
        self.run_dir, self._run_files, self.file = run_dir, run_files, file
        self._refreshing = threading.Lock()

    def refresh(self, *, max_seconds: float | None = None) -> bool:
        """Read the lines that the run has written since the last call.

        Args:
            max_seconds: Time limit; the rest is read by the next call.

        Returns:
            Whether everything was read.
        """
        until = time.monotonic() + max_seconds if max_seconds is not None else None
        with self._refreshing:
            self._read_journal()
            for path in self._files():
                while self._read_some(path):
                    if until is not None and time.monotonic() > until:
                        return False
        return True

    def count_read_bytes(self) -> tuple[int, int]:
        """Return (bytes of trajectory files that are indexed, bytes that exist)."""
        with self.file.connect() as db:
            done = dict(db.execute("SELECT name, done FROM files"))
        sizes = {path.name: path.stat().st_size for path in self._files() if path.is_file()}
        return sum(min(done.get(name, 0), size) for name, size in sizes.items()), sum(sizes.values())

    def _files(self) -> list[Path]:
        folder = self.run_dir / "trajectories"
        return sorted(folder.glob("*.jsonl")) if folder.is_dir() else []

    def _read_some(self, path: Path) -> bool:
        """Read lines for `_SLICE_SECONDS`; return whether there may be more."""
        began = time.monotonic()
        try:
            file = self._run_files.open(path)
        except OSError as error:
            with self.file.write() as db:
                store_problem(db, path.name, f"cannot be read: {error.strerror}")
            return False
        with closing(file), self.file.write() as db:
            done, lines = self._resume_file(db, file, path.name)
            part, step = _parse_stem(path.stem)
            components = read_components(db)
            file.seek(done)
            for line in iterate_lines(file, number=lines, offset=done, max_bytes=_MAX_LINE_BYTES):
                if line.is_too_long:
                    problem = f"line {line.number} is longer than {_MAX_LINE_BYTES} bytes; the rest is left out"
                    store_problem(db, path.name, problem)
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

    def _resume_file(self, db: sqlite3.Connection, file: Any, name: str) -> tuple[int, int]:
        """Return the (bytes, lines) of a file that were read before; if they have changed, their rows are deleted."""
        known = db.execute("SELECT done, lines, head, tail FROM files WHERE name = ?", (name,)).fetchone()
        if known is None:
            return 0, 0
        done, lines, head, tail = known
        if _compared(file, done) == (head, tail):
            return done, lines
        rows = "SELECT number FROM trajectories WHERE file = (SELECT number FROM names WHERE name = ?)"
        db.execute(f"DELETE FROM calls WHERE trajectory IN ({rows})", (name,))
        db.execute(f"DELETE FROM texts_of WHERE number IN ({rows})", (name,))
        db.execute(f"DELETE FROM trajectories WHERE number IN ({rows})", (name,))
        db.execute("DELETE FROM remarks WHERE file = ?", (name,))
        return 0, 0

    def _read_to(self, db: sqlite3.Connection, file: Any, name: str, done: int, lines: int) -> None:
        known = db.execute("SELECT done FROM files WHERE name = ?", (name,)).fetchone()
        if known is None or known[0] != done:
            row = (name, done, lines, *_compared(file, done))
            db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", row)

    def _read_journal(self) -> None:
        """Index the journal, which names the update that used each group."""
        path = self.run_dir / "store" / "journal.jsonl"
        if not path.is_file():
            return
        try:
            file = self._run_files.open(path)
        except OSError as error:
            with self.file.write() as db:
                store_problem(db, path.name, f"cannot be read: {error.strerror}")
            return
        with closing(file), self.file.write() as db:
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
                    index_journal_line(db, parse_object(line.content))
                except (*UNREADABLE, sqlite3.Error) as error:
                    store_problem(
                        db, path.name, f"line {lines} is not an event ({type(error).__name__}) and is skipped"
                    )
            self._read_to(db, file, path.name, done, lines)


def _parse_stem(stem: str) -> tuple[str, int | None]:
    """Parse the name of a trajectory file into (part of the run, step).

    `step-000003` is training; `evaluation-untrained` is before it; `evaluation-reinforcement-000005` is after step 5.
    """
    if stem.startswith("step-"):
        number = stem.removeprefix("step-")
        return "training", _parse_step(number)
    name = stem.removeprefix("evaluation-")
    step = name.rpartition("-")[2]
    if name == "untrained":
        return f"evaluation {name}", 0
    return f"evaluation {name}", _parse_step(step) if len(step) >= 6 else None


def _parse_step(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) <= 12 else None


def _compared(file: Any, done: int) -> tuple[int, int]:
    """Return checksums of the start of a file and of the bytes before a position, to detect a rewritten file."""
    file.seek(0)
    head = zlib.crc32(file.read(min(_COMPARED, done)))
    file.seek(max(0, done - _COMPARED))
    return head, zlib.crc32(file.read(min(_COMPARED, done)))
