"""Asking a database: SQLite and DuckDB by path, PostgreSQL by URL.

Read-only unless a recipe says otherwise; then each episode has a copy of its own (SQLite, DuckDB) or a transaction that
is taken back at its end (PostgreSQL), so that episodes do not see one another.

Easy to get wrong: a limit on rows is none on time. A query that joins everything with everything is interrupted where
it runs, and not only given up on.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from whetstone.errors import InfrastructureError, RecipeError, TaskError, ToolError
from whetstone.extras import install_command
from whetstone.tools.protocol import Episode

_MOST_CELL_CHARACTERS = 200
_MOST_VALUE_BYTES = 16 << 20
_ENDS_A_TRANSACTION = re.compile(
    r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*(begin|start|commit|end|rollback|abort|savepoint|release|prepare)\b",
    re.IGNORECASE | re.DOTALL,
)
_STEPS_BETWEEN_LOOKS = 10_000
_MAKING_SECONDS = 10.0
_OF_A_DUMP = ("foreign_keys", "defer_foreign_keys", "user_version", "application_id", "encoding", "synchronous")
"""Settings that dumps begin with, and that change nothing but the database that is made."""


class Database(Protocol):
    """A connection: what it is asked, and what it is made of."""

    def rows(self, query: str, most: int, seconds: float) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """(names of columns, up to so many rows); raises ToolError for what is wrong with the query."""
        ...

    def tables(self) -> dict[str, str]:
        """Each table by name, as the statement that makes it."""
        ...

    def interrupt(self) -> None:
        """End the query that runs in another thread, if one does."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Sql:
    """A database: two tools, `sql` and `schema`.

    Args:
        url: A file of SQLite or DuckDB (`.duckdb`), or `postgresql://…`; `task`: a SQLite database made by the
            statements under `database` in the task's private data.
        read_only: Whether nothing can be changed; otherwise each episode changes something of its own.
        max_rows: Rows shown of a result.
        timeout_seconds: How long a query may run.

    Raises:
        RecipeError: There is no such file, or the library is not installed.
    """

    def __init__(self, *, url: str, read_only: bool = True, max_rows: int = 50, timeout_seconds: float = 5.0) -> None:
        self.url, self.read_only, self.max_rows, self.timeout_seconds = url, read_only, max_rows, timeout_seconds
        self.stateless = read_only
        if url != "task" and not url.startswith("postgresql://"):
            if not Path(url).is_file():
                raise RecipeError(f"sql: there is no file {url}")
            if not _is_database(Path(url)):
                raise RecipeError(f"sql: {url} is no {'DuckDB' if url.endswith('.duckdb') else 'SQLite'} database")
        self._lock = threading.Lock()
        self._database: Database | None = None

    def open(self, episode: Episode) -> None:
        """Begin with the database as it is.

        Raises:
            TaskError: The task is to bring it, and does not, or its statements do not run.
        """
        if self.url == "task":
            if "database" not in episode.task.private:
                raise TaskError(f"task {episode.task.id}: has no private `database`, the statements that make one")
            try:
                self._database = _SQLite.made_by(str(episode.task.private["database"]), self.read_only)
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                raise TaskError(f"task {episode.task.id}: its database cannot be made: {error}") from None
        else:
            self._database = _opened(self.url, self.read_only)

    def close(self) -> None:
        """Let go of it, and of what the episode has changed. A query that still runs is ended first."""
        if self._database is not None:
            self._database.interrupt()
            with self._lock:  # SQLite does not survive being closed under a query
                self._database.close()
                self._database = None

    def sql(self, query: str) -> str:
        """Run one statement of SQL and show its rows.

        Args:
            query: The statement.
        """
        try:
            query.encode()
        except UnicodeEncodeError:
            raise ToolError("the query holds half a letter, which no text can") from None
        with self._lock:
            columns, rows = self._there().rows(query, self.max_rows + 1, self.timeout_seconds)
        if not columns:
            return "done"
        return as_table(columns, rows[: self.max_rows], more=len(rows) > self.max_rows)

    def schema(self, table: str = "") -> str:
        """Show which tables there are, with their columns, or how one is made.

        Args:
            table: Its name; empty for all.
        """
        with self._lock:
            tables = self._there().tables()
            if not table:
                names = (f"{name}({', '.join(self._columns(name))})" for name in tables)
                return "\n".join(names) or "there are no tables"
        if table not in tables:
            raise ToolError(f'there is no table "{table}"; there are: {", ".join(tables)}')
        return tables[table]

    def _columns(self, table: str) -> Sequence[str]:
        quoted = table.replace('"', '""')
        return self._there().rows(f'SELECT * FROM "{quoted}" LIMIT 0', 1, self.timeout_seconds)[0]

    def _there(self) -> Database:
        if self._database is None:
            raise InfrastructureError("the database was asked before its episode began")
        return self._database


def _is_database(path: Path) -> bool:
    """By its first bytes; SQLite reads an empty file as an empty database."""
    with open(path, "rb") as file:
        head = file.read(16)
    return head[8:12] == b"DUCK" if path.name.endswith(".duckdb") else head in (b"", b"SQLite format 3\x00")


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, more: bool) -> str:
    """Columns and rows with `|` between them, one a line; long cells are cut."""
    lines = [" | ".join(columns), *(" | ".join(map(_cell, row)) for row in rows)]
    lines.append(f"[{len(rows)} rows, there are more]" if more else f"[{len(rows)} row{'s' * (len(rows) != 1)}]")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    text = str(value).replace("\n", "⏎").replace("|", "¦")
    return text if len(text) <= _MOST_CELL_CHARACTERS else f"{text[: _MOST_CELL_CHARACTERS - 1]}…"


def _opened(url: str, read_only: bool) -> Database:
    if url.startswith("postgresql://"):
        return _PostgreSQL(url, read_only)
    return (_DuckDB if url.endswith(".duckdb") else _SQLite)(url, read_only)


class _SQLite:
    def __init__(self, path: str, read_only: bool) -> None:
        source = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
        if read_only:
            self.connection = source
            self.connection.execute("PRAGMA query_only = ON")
        else:
            self.connection = sqlite3.connect(":memory:", check_same_thread=False)
            with contextlib.closing(source):
                source.backup(self.connection)
        self._guard(self._allowed)

    @classmethod
    def made_by(cls, statements: str, read_only: bool) -> _SQLite:
        """A database in memory."""
        made = cls.__new__(cls)
        made.connection = sqlite3.connect(":memory:", check_same_thread=False)
        made._guard(cls._allowed_in_making)
        until = time.monotonic() + _MAKING_SECONDS
        made.connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS_BETWEEN_LOOKS)
        made.connection.executescript(statements)
        made.connection.set_progress_handler(None, 0)
        made.connection.set_authorizer(None)
        if read_only:
            made.connection.execute("PRAGMA query_only = ON")
        made._guard(cls._allowed)
        return made

    def _guard(self, allowed: Callable[..., int]) -> None:
        self.connection.isolation_level = None
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # no other file becomes part of this one
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
        self.connection.set_authorizer(allowed)

    @staticmethod
    def _allowed_in_making(action: int, first: str | None, *rest: str | None) -> int:
        if action == sqlite3.SQLITE_PRAGMA and str(first).lower() in _OF_A_DUMP:
            return sqlite3.SQLITE_OK
        return _SQLite._allowed(action, first, *rest)

    @staticmethod
    def _allowed(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
        if action == sqlite3.SQLITE_ATTACH or (action == sqlite3.SQLITE_PRAGMA and second is not None):
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION and second in ("load_extension", "readfile", "writefile", "edit"):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def rows(self, query: str, most: int, seconds: float) -> tuple[Sequence[str], list[Sequence[Any]]]:
        until = time.monotonic() + seconds
        self.connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS_BETWEEN_LOOKS)
        try:
            cursor = self.connection.execute(query)
            columns = [column[0] for column in cursor.description or ()]
            return columns, cursor.fetchmany(most) if columns else []
        except sqlite3.OperationalError as error:
            if time.monotonic() > until:
                raise ToolError(f"the query ran longer than {seconds:g} s and was ended") from None
            raise ToolError(str(error)) from None
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise ToolError(str(error)) from None
        finally:
            self.connection.set_progress_handler(None, 0)

    def tables(self) -> dict[str, str]:
        try:
            found = self.connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
            ).fetchall()
        except sqlite3.Error as error:
            raise ToolError(str(error)) from None
        return {name: sql for name, sql in found if sql}

    def interrupt(self) -> None:
        self.connection.interrupt()

    def close(self) -> None:
        self.connection.close()


class _DuckDB:
    def __init__(self, path: str, read_only: bool) -> None:
        try:
            import duckdb
        except ImportError:
            raise RecipeError(f"sql: DuckDB is not installed: {install_command('sql')}") from None
        self.duckdb, self.folder = duckdb, ""
        if not read_only:
            self.folder = tempfile.mkdtemp(prefix="whetstone-sql-")
            path = shutil.copy(path, self.folder)
        # statements could otherwise read any file of the machine, and load code
        settings = {"enable_external_access": "false", "autoinstall_known_extensions": "false"}
        settings |= {"threads": "1", "memory_limit": "1GB"}
        self.connection = duckdb.connect(path, read_only=read_only, config=settings)
        self.connection.execute("SET lock_configuration = true")

    def rows(self, query: str, most: int, seconds: float) -> tuple[Sequence[str], list[Sequence[Any]]]:
        with _interrupting(self.connection.interrupt, seconds) as late:
            try:
                cursor = self.connection.execute(query)
                if cursor is None:  # there was no statement
                    return [], []
                columns = [column[0] for column in cursor.description or ()]
                return columns, cursor.fetchmany(most)
            except self.duckdb.Error as error:
                with contextlib.suppress(self.duckdb.Error):  # a transaction that failed would refuse all that follows
                    self.connection.rollback()
                if late.is_set():
                    raise ToolError(f"the query ran longer than {seconds:g} s and was ended") from None
                raise ToolError(str(error)) from None

    def tables(self) -> dict[str, str]:
        try:
            found = self.connection.execute(
                "SELECT table_name, sql FROM duckdb_tables() UNION ALL "
                "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1"
            ).fetchall()
        except self.duckdb.Error as error:  # such as a transaction that was begun and has failed
            raise ToolError(str(error)) from None
        return dict(found)

    def interrupt(self) -> None:
        self.connection.interrupt()

    def close(self) -> None:
        self.connection.close()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class _PostgreSQL:
    def __init__(self, url: str, read_only: bool) -> None:
        try:
            import psycopg
        except ImportError:
            raise RecipeError(f"sql: psycopg is not installed: {install_command('sql')}") from None
        self.psycopg = psycopg
        try:
            self.connection = psycopg.connect(url, connect_timeout=10)
        except psycopg.Error as error:
            raise InfrastructureError(f"PostgreSQL: {error}") from None
        self.connection.read_only = read_only

    def rows(self, query: str, most: int, seconds: float) -> tuple[Sequence[str], list[Sequence[Any]]]:
        if _ENDS_A_TRANSACTION.match(query):
            raise ToolError("transactions are not yours to begin or end here")
        with self.connection.cursor() as cursor:
            try:
                # the extended protocol takes one statement alone, so none can end the transaction behind another
                cursor.execute("SAVEPOINT before")
                cursor.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
                cursor.execute(query, prepare=True)
                columns = [column.name for column in cursor.description or ()]
                return columns, cursor.fetchmany(most) if columns else []
            except self.psycopg.errors.QueryCanceled:
                cursor.execute("ROLLBACK TO SAVEPOINT before")
                raise ToolError(f"the query ran longer than {seconds:g} s and was ended") from None
            except self.psycopg.OperationalError as error:
                raise InfrastructureError(f"PostgreSQL: {error}") from None
            except self.psycopg.Error as error:
                cursor.execute("ROLLBACK TO SAVEPOINT before")
                raise ToolError(str(error)) from None

    def tables(self) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        query = (
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY table_name, ordinal_position"
        )
        for table, column, kind in self.connection.execute(query).fetchall():
            found.setdefault(table, []).append(f"{column} {kind}")
        return {table: f"CREATE TABLE {table} ({', '.join(columns)})" for table, columns in found.items()}

    def interrupt(self) -> None:
        self.connection.cancel()

    def close(self) -> None:
        self.connection.rollback()
        self.connection.close()


@contextlib.contextmanager
def _interrupting(interrupt: Any, seconds: float) -> Iterator[threading.Event]:
    """Interrupt what runs in the block when its time is over; the event says whether that was so."""
    late = threading.Event()

    def end() -> None:
        late.set()
        interrupt()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
