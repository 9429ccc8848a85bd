"""The seam to a database: what it is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Result:
    """What a statement gave."""

    columns: Sequence[str]
    """Their names; none where the statement gives no rows."""
    rows: Sequence[Sequence[Any]]
    """Up to as many as were asked for."""


class Database(Protocol):
    """A database that is open; nothing it does blocks the event loop."""

    async def rows(self, query: str, *, most: int, seconds: float) -> Result:
        """Up to `most` rows; raises ToolError for what is wrong with the query, or what it asks too much of."""
        ...

    async def tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """Each table by name: the statement that makes it, and its columns with commas between."""
        ...

    async def close(self) -> None:
        """Let go of it, whatever still runs."""
        ...
