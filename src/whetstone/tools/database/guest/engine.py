"""Interface between a database process and the library that reads its file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Cursor(Protocol):
    """Result of a statement, row by row."""

    @property
    def description(self) -> Sequence[Sequence[Any]] | None:
        """One item per column, with the name first."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; None after the last."""
        ...


class DatabaseEngine(Protocol):
    """A database library with at most one open file."""

    opens_nothing_beside: bool
    """Whether a read-only file needs no second file, so that all other files can be blocked before it is opened."""
    gives_memory_back: bool
    """Whether a process can run further queries after one exceeded its memory."""

    def create(self, path: str, statements: str, until: float) -> None:
        """Create a file with SQL statements that can access nothing else and are interrupted at time `until`."""
        ...

    def copy(self, source: str, path: str) -> None:
        """Create a file with the contents of another."""
        ...

    def open(self, path: str, *, read_only: bool, memory: int, file: int) -> None:
        """Open a file and everything it needs, so that access to all other files can be blocked afterwards.

        Args:
            path: Path of the file.
            read_only: Whether changes are forbidden.
            memory: Memory limit, in bytes.
            file: Maximum size of the file, in bytes.
        """
        ...

    def execute(self, query: str) -> Cursor:
        """Run one statement."""
        ...

    def list_tables(self) -> list[tuple[str, str]]:
        """Return (name, `CREATE` statement) of each table and view."""
        ...

    def interrupt_at(self, moment: float) -> AbstractContextManager[None]:
        """Interrupt the statement in the block at a time, if possible; in seconds of the monotonic clock."""
        ...

    def is_usable(self) -> bool:
        """Return whether the connection can run further queries after an error."""
        ...
