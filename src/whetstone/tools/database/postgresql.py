"""PostgreSQL database of an episode: a transaction that is rolled back at the end.

The server enforces the time limit; only threads wait for it.

Note:
    A statement that could end the transaction would make the changes of an episode permanent, so it is rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from typing import Any

from whetstone.errors import InfrastructureError, RecipeError, ToolError
from whetstone.optional_dependencies import install_command
from whetstone.tools.database.protocol import QueryResult
from whetstone.tools.thread_runner import run_in_thread

_ENDS_A_TRANSACTION = re.compile(
    r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*(begin|start|commit|end|rollback|abort|savepoint|release|prepare)\b",
    re.IGNORECASE | re.DOTALL,
)
_MOST_SECONDS_TO_CLOSE = 5.0
_MOST_COLUMNS = 20_000


class PostgreSQL:
    """PostgreSQL database of an episode; implements `Database`.

    Args:
        url: Address of the database, `postgresql://…`.
        read_only: Whether changes are forbidden.
    """

    def __init__(self, url: str, *, read_only: bool) -> None:
        self._url, self._read_only = url, read_only
        self._connection: Any = None
        self._psycopg: Any = None
        self._lock = threading.Lock()

    async def open(self) -> None:
        """Connect to the server.

        Raises:
            RecipeError: If psycopg is not installed.
            InfrastructureError: If the server does not respond.
        """
        await run_in_thread(self._connect)

    async def fetch_rows(self, query: str, *, most: int, seconds: float) -> QueryResult:
        """Run one SQL statement in the episode's transaction and return its rows.

        Raises:
            ToolError: If the statement is invalid, could end the transaction, or exceeded its time limit.
            InfrastructureError: If the connection is lost.
        """
        return await run_in_thread(self._rows, query=query, most=most, seconds=seconds)  # type: ignore[no-any-return]

    async def list_tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """Return (`CREATE` statement, columns separated by commas) by table name, from the information schema."""
        query = (
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY table_name, ordinal_position"
        )
        columns_by_table: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in (await self.fetch_rows(query, most=_MOST_COLUMNS, seconds=seconds)).rows:
            columns_by_table.setdefault(table, []).append((column, kind))
        return {
            table: (
                f"CREATE TABLE {table} ({', '.join(f'{column} {kind}' for column, kind in columns)})",
                ", ".join(column for column, _ in columns),
            )
            for table, columns in columns_by_table.items()
        }

    async def close(self) -> None:
        """Roll back and disconnect.

        A running query is canceled, and a server that does not respond is abandoned.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOST_SECONDS_TO_CLOSE):
                await run_in_thread(self._close)

    def _connect(self) -> None:
        try:
            import psycopg
        except ImportError:
            raise RecipeError(f"sql: psycopg is not installed: {install_command('sql')}") from None
        self._psycopg = psycopg
        try:
            self._connection = psycopg.connect(self._url, connect_timeout=10)
        except psycopg.Error as error:
            raise InfrastructureError(f"PostgreSQL: {error}") from None
        self._connection.read_only = self._read_only

    def _rows(self, query: str, most: int, seconds: float) -> QueryResult:
        if _ENDS_A_TRANSACTION.match(query):
            raise ToolError("transactions are not yours to begin or end here")
        with self._lock, self._connection.cursor() as cursor:
            try:
                # the extended protocol takes a single statement, so a second one cannot end the transaction
                cursor.execute("SAVEPOINT before")
                cursor.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
                cursor.execute(query, prepare=True)
                columns = [column.name for column in cursor.description or ()]
                return QueryResult(columns, cursor.fetchmany(most) if columns else [])
            except self._psycopg.errors.QueryCanceled:
                cursor.execute("ROLLBACK TO SAVEPOINT before")
                raise ToolError(f"the query ran longer than {seconds:g} s and was ended") from None
            except self._psycopg.OperationalError as error:
                raise InfrastructureError(f"PostgreSQL: {error}") from None
            except self._psycopg.Error as error:
                cursor.execute("ROLLBACK TO SAVEPOINT before")
                raise ToolError(str(error)) from None

    def _close(self) -> None:
        if self._connection is None:
            return
        if self._lock.locked():
            self._connection.cancel()
        with self._lock:
            self._connection.rollback()
            self._connection.close()
