"""A server of PostgreSQL: an episode is a transaction that is taken back at its end.

The server keeps to the time itself; here nothing but threads wait for it.

Easy to get wrong: the end of the transaction. A statement that could end it would leave what an episode has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from typing import Any

from whetstone.errors import InfrastructureError, RecipeError, ToolError
from whetstone.extras import install_command
from whetstone.tools.database.protocol import Result
from whetstone.tools.threads import run_in_thread

_ENDS_A_TRANSACTION = re.compile(
    r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*(begin|start|commit|end|rollback|abort|savepoint|release|prepare)\b",
    re.IGNORECASE | re.DOTALL,
)
_MOST_SECONDS_TO_CLOSE = 5.0
_MOST_COLUMNS = 20_000


class PostgreSQL:
    """See `Database`.

    Args:
        url: `postgresql://…`.
        read_only: Whether nothing can be changed.
    """

    def __init__(self, url: str, *, read_only: bool) -> None:
        self._url, self._read_only = url, read_only
        self._connection: Any = None
        self._psycopg: Any = None
        self._lock = threading.Lock()

    async def open(self) -> None:
        """Connect.

        Raises:
            RecipeError: The library is not installed.
            InfrastructureError: The server does not answer.
        """
        await run_in_thread(self._connect)

    async def rows(self, query: str, *, most: int, seconds: float) -> Result:
        """See `Database`.

        Raises:
            ToolError: It is wrong, or took too long.
            InfrastructureError: The server is gone.
        """
        return await run_in_thread(self._rows, query=query, most=most, seconds=seconds)  # type: ignore[no-any-return]

    async def tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """See `Database`."""
        query = (
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY table_name, ordinal_position"
        )
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in (await self.rows(query, most=_MOST_COLUMNS, seconds=seconds)).rows:
            found.setdefault(table, []).append((column, kind))
        return {
            table: (
                f"CREATE TABLE {table} ({', '.join(f'{column} {kind}' for column, kind in columns)})",
                ", ".join(column for column, _ in columns),
            )
            for table, columns in found.items()
        }

    async def close(self) -> None:
        """See `Database`. What runs is cancelled; a server that does not answer is left to itself."""
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

    def _rows(self, query: str, most: int, seconds: float) -> Result:
        if _ENDS_A_TRANSACTION.match(query):
            raise ToolError("transactions are not yours to begin or end here")
        with self._lock, self._connection.cursor() as cursor:
            try:
                # the extended protocol takes one statement alone, so none can end the transaction behind another
                cursor.execute("SAVEPOINT before")
                cursor.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
                cursor.execute(query, prepare=True)
                columns = [column.name for column in cursor.description or ()]
                return Result(columns, cursor.fetchmany(most) if columns else [])
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
