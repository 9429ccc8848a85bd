"""Interface of databases: queries and their results."""

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
    """Rows, at most as many as requested."""


class Database(Protocol):
    """An open database; no method blocks the event loop."""

    async def fetch_rows(self, query: str, *, most: int, seconds: float) -> QueryResult:
        """Return up to `most` rows; raise ToolError if the query is invalid or exceeds its limits."""
        ...

    async def list_tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """Return, by table name: the `CREATE` statement, and the columns separated by commas."""
        ...

    async def close(self) -> None:
        """Close the database, even if a query is still running."""
        ...
