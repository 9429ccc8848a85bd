"""SQLite engine, restricted to one file: no other file is attached, written, or read by a function."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

from whetstone.tools.database.guest.engine import Cursor

_MOST_VALUE_BYTES = 16 << 20
_STEPS_BETWEEN_LOOKS = 10_000
_OF_A_DUMP = ("foreign_keys", "defer_foreign_keys", "user_version", "application_id", "encoding", "synchronous")
"""Pragmas at the start of SQL dumps, which affect only the database that is created."""
_REFUSED_FUNCTIONS = ("load_extension", "readfile", "writefile", "edit")


class SQLite:
    """SQLite library with one open file; implements `DatabaseEngine`."""

    opens_nothing_beside = False  # a database in WAL mode has two files more
    gives_memory_back = True

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None

    @property
    def connection(self) -> sqlite3.Connection:
        """Open connection; must not be read before `create` or `open`."""
        assert self._connection is not None
        return self._connection

    def create(self, path: str, statements: str, until: float) -> None:
        """Create a database file with SQL statements; pragmas of a dump are allowed."""
        self._connection = self._connect(path, "rwc")
        self._guard(_allowed_in_making)
        with self.interrupt_at(until):
            self._connection.executescript(statements)
        self._connection.close()

    def copy(self, source: str, path: str) -> None:
        """Copy a database with the backup API, so that a concurrent write is copied completely or not at all."""
        with (
            contextlib.closing(self._connect(source, "ro")) as original,
            contextlib.closing(self._connect(path, "rwc")) as copy,
        ):
            original.backup(copy)

    def open(self, path: str, *, read_only: bool, memory: int, file: int) -> None:
        """Open a file, limit its growth, and forbid other files."""
        self._connection = self._connect(path, "ro" if read_only else "rw")
        if read_only:
            self._connection.execute("PRAGMA query_only = ON")
        self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the WAL files
        (page,) = self._connection.execute("PRAGMA page_size").fetchone()
        self._connection.execute(f"PRAGMA max_page_count = {max(1, file // page)}")  # a clearer word than the kernel's
        self._guard(_authorize)

    def execute(self, query: str) -> Cursor:
        """Run one SQL statement and return its cursor."""
        return self.connection.execute(query)

    def list_tables(self) -> list[tuple[str, str]]:
        """Return (name, `CREATE` statement) of each table and view."""
        cursor = self.connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
        )
        return [(name, sql) for name, sql in cursor if sql]

    @contextlib.contextmanager
    def interrupt_at(self, moment: float) -> Iterator[None]:
        """Return a context manager that interrupts the statement in its block at a time, by a progress handler."""
        connection = self.connection
        connection.set_progress_handler(lambda: time.monotonic() > moment, _STEPS_BETWEEN_LOOKS)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)

    def is_usable(self) -> bool:
        """Return True: SQLite can continue after every error."""
        return True

    @staticmethod
    def _connect(path: str, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(f"file:{quote(path)}?mode={mode}", uri=True)
        connection.isolation_level = None
        connection.execute("PRAGMA temp_store = MEMORY")  # sorting uses memory, which is limited, and not the disk
        # a process that ends in the middle leaves a whole file; only of the machine's end that is not so
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def _guard(self, allowed: Callable[..., int]) -> None:
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # no other file becomes part of this one
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
        self.connection.set_authorizer(allowed)


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action == sqlite3.SQLITE_ATTACH or (action == sqlite3.SQLITE_PRAGMA and second is not None):
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and second in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _allowed_in_making(action: int, first: str | None, *rest: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA and str(first).lower() in _OF_A_DUMP:
        return sqlite3.SQLITE_OK
    return _authorize(action, first, *rest)
