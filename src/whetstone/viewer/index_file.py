"""SQLite file of the trajectory index of a run.

The file is in the user's cache, never in the run: viewing a run changes nothing of it. It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path

from whetstone.cache_dir import cache_dir

_TABLES = (files(__package__) / "index.sql").read_text("utf-8")
_FORM = 2
"""Version of the tables; an index of another version is built again."""


class IndexFile:
    """SQLite file of an index: creates its tables, and opens connections to it.

    Args:
        run_dir: The run, resolved.
        folder: Folder of indexes; None: the user's cache. If it is not writable, a temporary folder is used.
    """

    def __init__(self, run_dir: Path, folder: Path | None) -> None:
        name = f"{hashlib.sha256(str(run_dir).encode()).hexdigest()[:24]}.sqlite"
        self._own: tempfile.TemporaryDirectory[str] | None = None
        try:
            self.path = (folder or cache_dir() / "viewer") / name
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._prepare(run_dir)
        except (OSError, sqlite3.OperationalError):
            self._own = tempfile.TemporaryDirectory(prefix="whetstone-view-")
            self.path = Path(self._own.name) / name
            self._prepare(run_dir)

    @property
    def is_kept(self) -> bool:
        """Return whether the index is kept when the process ends; False for a temporary folder."""
        return self._own is None

    def close(self) -> None:
        """Remove the temporary folder, if the index is in one."""
        if self._own is not None:
            self._own.cleanup()

    def _prepare(self, run_dir: Path) -> None:
        """Create the tables, unless the file has the tables of this release."""
        try:
            with self.connect() as db:
                form = db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            form = -1
        if form == _FORM:
            return
        for path in (self.path, *(self.path.with_name(f"{self.path.name}-{end}") for end in ("wal", "shm"))):
            path.unlink(missing_ok=True)
        with self.connect() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            if db.execute("PRAGMA user_version").fetchone()[0] == _FORM:  # another process was quicker
                db.execute("ROLLBACK")
                return
            for statement in _TABLES.strip().split(";\n"):
                db.execute(statement.rstrip(";"))
            db.execute("INSERT INTO about VALUES (?)", (str(run_dir),))
            db.execute(f"PRAGMA user_version = {_FORM}")
            db.execute("COMMIT")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Open a read connection that is closed at the end of the block."""
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as db:
            db.execute("PRAGMA mmap_size = 1000000000")
            db.execute("PRAGMA synchronous = OFF")  # lost rows are read again
            yield db

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one write transaction; an exception in the block rolls it back."""
        with self.connect() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


def read_components(db: sqlite3.Connection) -> dict[str, str]:
    """Return the SQL column of each reward component, by name of the component."""
    return dict(db.execute("SELECT name, place FROM components").fetchall())
