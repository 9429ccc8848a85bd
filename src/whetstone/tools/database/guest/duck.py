"""DuckDB engine, restricted to one file: it reads and writes no other file, and loads no code."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any

from whetstone.tools.database.guest.engine import Cursor


class DuckDB:
    """DuckDB library with one open file; implements `DatabaseEngine`."""

    opens_nothing_beside = True
    gives_memory_back = False

    def __init__(self) -> None:
        import duckdb

        self._duckdb = duckdb
        self._connection: Any = None
        self._usable = True

    def create(self, path: str, statements: str, until: float) -> None:
        """Raise `NotImplementedError`: the statements of a task are for SQLite."""
        raise NotImplementedError

    def copy(self, source: str, path: str) -> None:
        """Copy a database file and its write-ahead log."""
        shutil.copyfile(source, path)
        if os.path.isfile(f"{source}.wal"):  # what has not become part of the file yet
            shutil.copyfile(f"{source}.wal", f"{path}.wal")

    def open(self, path: str, *, read_only: bool, memory: int, file: int) -> None:
        """Open a file with half of the memory limit for DuckDB's buffers, and lock the configuration."""
        # statements could otherwise read any file of the machine, and load code
        settings = {"enable_external_access": "false", "autoinstall_known_extensions": "false"}
        # a half of the memory: it counts its buffers, and not all it asks the system for
        settings |= {"threads": "1", "memory_limit": f"{memory // 2 >> 20}MiB", "temp_directory": ""}
        self._connection = self._duckdb.connect(path, read_only=read_only, config=settings)
        self._connection.execute("SET lock_configuration = true")

    def execute(self, query: str) -> Cursor:
        """Run one SQL statement; roll the transaction back if it fails."""
        try:
            return self._connection.execute(query)  # type: ignore[no-any-return]
        except (self._duckdb.FatalException, self._duckdb.InternalException):
            self._usable = False  # it refuses whatever is asked from here on
            raise
        except self._duckdb.Error:  # its transaction is over with it, and would refuse whatever follows
            with contextlib.suppress(self._duckdb.Error):
                self._connection.rollback()
            raise

    def list_tables(self) -> list[tuple[str, str]]:
        """Return (name, `CREATE` statement) of each table and view."""
        cursor = self._connection.execute(
            "SELECT table_name, sql FROM duckdb_tables() UNION ALL "
            "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1"
        )
        return list(cursor.fetchall())

    @contextlib.contextmanager
    def interrupt_at(self, moment: float) -> Iterator[None]:
        """Return a context manager that interrupts the statement in its block at a time, by a timer thread."""
        timer = threading.Timer(max(moment - time.monotonic(), 0), self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def is_usable(self) -> bool:
        """Return False after a fatal or internal error of DuckDB."""
        return self._usable
