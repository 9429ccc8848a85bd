"""Protocol of databases: SQL queries and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a SQL statement."""

    columns: Sequence[str]
    """Names of the columns; empty if the statement returns no rows."""
    rows: Sequence[Sequence[Any]]
    """Rows of values, at most as many as requested."""


class Database(Protocol):
    """Open database of an episode; its methods do not block the event loop."""

    async def fetch_rows(self, query: str, *, most: int, seconds: float) -> QueryResult:
        """Run one SQL statement and return its rows.

        Args:
            query: SQL statement.
            most: Maximum number of rows.
            seconds: Time limit in seconds.

        Raises:
            ToolError: If the statement is invalid, or exceeds its limits.
            InfrastructureError: If the database is not available.
        """
        ...

    async def list_tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """Return (`CREATE` statement, columns separated by commas) by table name.

        Args:
            seconds: Time limit in seconds.
        """
        ...

    async def close(self) -> None:
        """Close the database, even if a query is still running."""
        ...
