"""Protocol of the library that reads a database file, inside a database process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Cursor(Protocol):
    """Result of a SQL statement, row by row, as the Python DB API defines it."""

    @property
    def description(self) -> Sequence[Sequence[Any]] | None:
        """One item per column, with its name first; None if the statement returns no rows."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; None after the last row."""
        ...


class DatabaseEngine(Protocol):
    """Database library with at most one open file, restricted to that file."""

    opens_nothing_beside: bool
    """Whether a read-only file needs no second file, so that all other files can be blocked before it is opened."""
    gives_memory_back: bool
    """Whether a process can run further queries after a query exceeded its memory."""

    def create(self, path: str, statements: str, until: float) -> None:
        """Create a database file with SQL statements.

        Args:
            path: Path of the new file.
            statements: SQL statements, which can access nothing except the new file.
            until: Time at which they are interrupted, in seconds of the monotonic clock.
        """
        ...

    def copy(self, source: str, path: str) -> None:
        """Create a database file with the contents of another file."""
        ...

    def open(self, path: str, *, read_only: bool, memory: int, file: int) -> None:
        """Open a file and everything it needs, so that access to all other files can be blocked afterwards.

        Args:
            path: Path of the file.
            read_only: Whether changes are forbidden.
            memory: Memory limit in bytes.
            file: Maximum size of the file in bytes.
        """
        ...

    def execute(self, query: str) -> Cursor:
        """Run one SQL statement and return its cursor."""
        ...

    def list_tables(self) -> list[tuple[str, str]]:
        """Return (name, `CREATE` statement) of each table and view."""
        ...

    def interrupt_at(self, moment: float) -> AbstractContextManager[None]:
        """Return a context manager that interrupts the statement in its block at a time, if possible.

        Args:
            moment: Time in seconds of the monotonic clock.
        """
        ...

    def is_usable(self) -> bool:
        """Return whether the connection can run further queries after an error."""
        ...
