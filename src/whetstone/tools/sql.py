"""Asking a database: SQLite and DuckDB by path, PostgreSQL by URL.

Read-only unless a recipe says otherwise; then each episode has a copy of its own (SQLite, DuckDB) or a transaction that
is taken back at its end (PostgreSQL), so that episodes do not see one another.

Easy to get wrong: a limit on rows is none on time or memory. SQLite and DuckDB are asked in a process of their own
(`database/`), which is ended where a query takes too long or too much, and is there again for the next.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from whetstone.errors import DatabaseError, InfrastructureError, RecipeError, TaskError, ToolError
from whetstone.extras import install_command
from whetstone.tools.database import Database, DatabaseProcess, Origin, PostgreSQL
from whetstone.tools.protocol import Episode

_MOST_CELL_CHARACTERS = 200


class Sql:
    """A database: two tools, `sql` and `schema`.

    Args:
        url: A file of SQLite or DuckDB (`.duckdb`), or `postgresql://…`; `task`: a SQLite database made by the
            statements under `database` in the task's private data.
        read_only: Whether nothing can be changed; otherwise each episode changes something of its own.
        max_rows: Rows shown of a result.
        timeout_seconds: How long a query may run.
        memory_mb: MiB a query may take, and what an episode changes may grow by (SQLite, DuckDB).

    Raises:
        RecipeError: There is no such file, or the library is not installed.
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
                raise RecipeError(f"sql: there is no file {url}")
            if not _is_database(Path(url)):
                raise RecipeError(f"sql: {url} is no {'DuckDB' if url.endswith('.duckdb') else 'SQLite'} database")
            if url.endswith(".duckdb") and importlib.util.find_spec("duckdb") is None:
                raise RecipeError(f"sql: DuckDB is not installed: {install_command('sql')}")
        if url.startswith("postgresql://") and importlib.util.find_spec("psycopg") is None:
            raise RecipeError(f"sql: psycopg is not installed: {install_command('sql')}")
        self._database: Database | None = None

    async def open(self, episode: Episode) -> None:
        """Begin with the database as it is.

        Raises:
            TaskError: The task is to bring it, and does not, or its statements do not run.
            InfrastructureError: It cannot be had.
        """
        await self.close()
        if self.url.startswith("postgresql://"):
            server = PostgreSQL(self.url, read_only=self.read_only)
            await server.open()
            self._database = server
            return
        if self.url != "task":
            kind: Literal["sqlite", "duckdb"] = "duckdb" if self.url.endswith(".duckdb") else "sqlite"
            origin = Origin(kind, path=self.url, read_only=self.read_only)
        elif "database" in episode.task.private:
            statements = str(episode.task.private["database"])
            origin = Origin("sqlite", statements=statements, read_only=self.read_only)
        else:
            raise TaskError(f"task {episode.task.id}: has no private `database`, the statements that make one")
        process = DatabaseProcess(origin, memory_mb=self.memory_mb)
        try:
            await process.open()
        except DatabaseError as error:
            if self.url == "task":
                raise TaskError(f"task {episode.task.id}: its database cannot be made: {error}") from None
            raise InfrastructureError(f"sql: {self.url} cannot be opened: {error}") from None
        self._database = process

    async def close(self) -> None:
        """Let go of it, and of what the episode has changed. A query that still runs is ended first."""
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
        result = await self._there().rows(query, most=self.max_rows + 1, seconds=self.timeout_seconds)
        if not result.columns:
            return "done"
        return as_table(result.columns, result.rows[: self.max_rows], more=len(result.rows) > self.max_rows)

    async def schema(self, table: str = "") -> str:
        """Show which tables there are, with their columns, or how one is made.

        Args:
            table: Its name; empty for all.
        """
        tables = await self._there().tables(seconds=self.timeout_seconds)
        if not table:
            return "\n".join(f"{name}({columns})" for name, (_, columns) in tables.items()) or "there are no tables"
        if table not in tables:
            raise ToolError(f'there is no table "{table}"; there are: {", ".join(tables)}')
        return tables[table][0]

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
