"""Interface of databases: queries and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a SQL statement."""

    columns: Sequence[str]
    """Names of the columns; empty if the statement returns no rows."""
    rows: Sequence[Sequence[Any]]
    """Rows, at most as many as requested."""


class Database(Protocol):
    """An open database; no method blocks the event loop."""

    async def rows(self, query: str, *, most: int, seconds: float) -> Result:
        """Return up to `most` rows; raise ToolError if the query is invalid or exceeds its limits."""
        ...

    async def tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """Return, by table name: the `CREATE` statement, and the columns separated by commas."""
        ...

    async def close(self) -> None:
        """Close the database, even if a query is still running."""
        ...
