"""The seam between a database's process and the library that reads its file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Cursor(Protocol):
    """What a statement is giving."""

    @property
    def description(self) -> Sequence[Sequence[Any]] | None:
        """A column each, its name first."""
        ...

    def fetchone(self) -> Any:
        """The next row; None after the last."""
        ...


class Engine(Protocol):
    """A library, with one file open at most."""

    opens_nothing_beside: bool
    """Whether a file that is only read needs no other, and may be all there is before it is opened."""
    gives_memory_back: bool
    """Whether a process in which a query took too much can be asked again."""

    def make(self, path: str, statements: str, until: float) -> None:
        """Make a file by statements that can reach nothing else, and are interrupted at a moment."""
        ...

    def copy(self, source: str, path: str) -> None:
        """Make a file with what another holds."""
        ...

    def open(self, path: str, *, read_only: bool, memory: int, file: int) -> None:
        """Open a file, and all it needs beside it, so that the rest of the machine may be closed.

        Args:
            path: Where it is.
            read_only: Whether nothing can be changed.
            memory: Bytes there are for it.
            file: Bytes it may grow to.
        """
        ...

    def execute(self, query: str) -> Cursor:
        """Run one statement."""
        ...

    def tables(self) -> list[tuple[str, str]]:
        """(name, the statement that makes it), of tables and views."""
        ...

    def until(self, moment: float) -> AbstractContextManager[None]:
        """Interrupt what runs in the block at this moment, where it can be; in seconds of the monotonic clock."""
        ...

    def usable(self) -> bool:
        """Whether it can go on after an error."""
        ...
