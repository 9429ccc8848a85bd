"""SQL tools for SQLite and DuckDB files and PostgreSQL servers.

Read-only by default. Otherwise each episode has its own copy (SQLite, DuckDB) or a transaction that is rolled back at
its end (PostgreSQL), so that episodes do not affect one another.

Note:
    A limit on rows does not limit time or memory. SQLite and DuckDB therefore run in a dedicated process (`database/`),
    which is killed if a query exceeds its time or memory, and is restarted for the next query.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from whetstone.errors import DatabaseError, InfrastructureError, RecipeError, TaskError, ToolError
from whetstone.optional_dependencies import install_command
from whetstone.tools.database import Database, DatabaseOrigin, DatabaseProcess, PostgreSQL
from whetstone.tools.protocol import Episode

_MOST_CELL_CHARACTERS = 200


class Sql:
    """Database that the model queries: two tools, `sql` and `schema`.

    Args:
        url: Path of a SQLite or DuckDB (`.duckdb`) file, or `postgresql://…`; `task`: a SQLite database created by the
            statements under `database` in the task's private data.
        read_only: Whether changes are forbidden; otherwise the changes of an episode are visible only to that episode.
        max_rows: Maximum number of rows shown.
        timeout_seconds: Time limit of a query, in seconds.
        memory_mb: Memory limit of a query, and maximum growth of the database, in MiB (SQLite, DuckDB).

    Raises:
        RecipeError: If the file does not exist, or the library is not installed.
    """

    effects = "read"

    def __init__(
        self,
        *,
        url: str,
        read_only: bool = True,
        max_rows: int = 50,
        timeout_seconds: float = 5.0,
        memory_mb: int = 512,
    ) -> None:
        self.url, self.read_only, self.max_rows = url, read_only, max_rows
        self.timeout_seconds, self.memory_mb = timeout_seconds, memory_mb
        self.stateless = read_only
        if memory_mb < 1:
            raise RecipeError(f"sql: memory_mb must be above 0, got {memory_mb}")
        if url != "task" and not url.startswith("postgresql://"):
            if not Path(url).is_file():
                raise RecipeError(f"sql: no such file: {url}")
            if not _is_database(Path(url)):
                raise RecipeError(f"sql: {url} is not a {'DuckDB' if url.endswith('.duckdb') else 'SQLite'} database")
            if url.endswith(".duckdb") and importlib.util.find_spec("duckdb") is None:
                raise RecipeError(f"sql: DuckDB is not installed: {install_command('sql')}")
        if url.startswith("postgresql://") and importlib.util.find_spec("psycopg") is None:
            raise RecipeError(f"sql: psycopg is not installed: {install_command('sql')}")
        self._database: Database | None = None

    async def open(self, episode: Episode) -> None:
        """Open the database for an episode.

        Raises:
            TaskError: If the task has no database, or its statements fail.
            InfrastructureError: If the database cannot be opened.
        """
        await self.close()
        if self.url.startswith("postgresql://"):
            server = PostgreSQL(self.url, read_only=self.read_only)
            await server.open()
            self._database = server
            return
        if self.url != "task":
            kind: Literal["sqlite", "duckdb"] = "duckdb" if self.url.endswith(".duckdb") else "sqlite"
            origin = DatabaseOrigin(kind, path=self.url, read_only=self.read_only)
        elif "database" in episode.task.private:
            statements = str(episode.task.private["database"])
            origin = DatabaseOrigin("sqlite", statements=statements, read_only=self.read_only)
        else:
            raise TaskError(f"task {episode.task.id}: has no private `database` with SQL statements that create it")
        process = DatabaseProcess(origin, memory_mb=self.memory_mb)
        try:
            await process.open()
        except DatabaseError as error:
            if self.url == "task":
                raise TaskError(f"task {episode.task.id}: its database cannot be created: {error}") from None
            raise InfrastructureError(f"sql: {self.url} cannot be opened: {error}") from None
        self._database = process

    async def close(self) -> None:
        """Close the database and discard the changes of the episode.

        A running query is stopped first.
        """
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def sql(self, query: str) -> str:
        """Run one statement of SQL and show its rows.

        Args:
            query: The statement.
        """
        try:
            query.encode()
        except UnicodeEncodeError:
            raise ToolError("the query holds half a letter, which no text can") from None
        result = await self._require_database().fetch_rows(query, most=self.max_rows + 1, seconds=self.timeout_seconds)
        if not result.columns:
            return "done"
        return as_table(result.columns, result.rows[: self.max_rows], more=len(result.rows) > self.max_rows)

    async def schema(self, table: str = "") -> str:
        """Show which tables there are, with their columns, or how one is made.

        Args:
            table: Its name; empty for all.
        """
        tables = await self._require_database().list_tables(seconds=self.timeout_seconds)
        if not table:
            return "\n".join(f"{name}({columns})" for name, (_, columns) in tables.items()) or "there are no tables"
        if table not in tables:
            raise ToolError(f'there is no table "{table}"; there are: {", ".join(tables)}')
        return tables[table][0]

    def _require_database(self) -> Database:
        if self._database is None:
            raise InfrastructureError("sql: the database was queried before `open`; open the toolset first")
        return self._database


def _is_database(path: Path) -> bool:
    """Return whether the first bytes of a file are those of a database.

    An empty file is a valid SQLite database.
    """
    with open(path, "rb") as file:
        head = file.read(16)
    return head[8:12] == b"DUCK" if path.name.endswith(".duckdb") else head in (b"", b"SQLite format 3\x00")


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, more: bool) -> str:
    """Return columns and rows as text with `|` as separator, one row per line.

    Long cells are cut.

    Args:
        columns: Names of the columns.
        rows: Rows that are shown.
        more: Whether the result has further rows.
    """
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
