"""A file of SQLite or DuckDB, open in a process of its own, that ends when a query takes too long or too much.

What an episode may change is a copy in a folder of its own, and so is what a task's statements make: when the process
has to be ended, the next one goes on with the file, and what was committed is there.

Easy to get wrong: whose fault an end is. Under a query it is the query's, and the model is told; an end that no query
had a part in is made good without a word.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import tempfile
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.errors import DatabaseError, InfrastructureError, ToolError
from whetstone.tools.database.protocol import Result
from whetstone.tools.database.server import ResultTooLargeError, Worker, server_of
from whetstone.tools.threads import run_in_thread

_MEBIBYTE = 1 << 20
_GRACE_SECONDS = 1.0
"""How long one that was interrupted may take to say so."""
_MAKING_SECONDS, _OPENING_SECONDS, _COPYING_SECONDS = 10.0, 30.0, 600.0
_START_SECONDS = 30.0
"""Until a process that has just been asked for is there; the first one waits for its server's imports."""
_MOST_RESULT_BYTES = 64 * _MEBIBYTE


@dataclass(frozen=True, slots=True)
class Origin:
    """What a database is at the beginning."""

    kind: Literal["sqlite", "duckdb"]
    path: str = ""
    """Its file; empty where there are statements."""
    statements: str | None = None
    """What makes it (SQLite)."""
    read_only: bool = True
    """Whether nothing can be changed. Otherwise a copy can be, and the file stays as it is."""


class DatabaseProcess:
    """See `Database`.

    Args:
        origin: What it is at the beginning.
        memory_mb: MiB a query may take, and the file may grow by.
    """

    def __init__(self, origin: Origin, *, memory_mb: int = 512) -> None:
        self.origin, self.memory_mb = origin, memory_mb
        self._path = os.path.abspath(origin.path)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._worker: Worker | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Begin with what it is at the beginning.

        Raises:
            DatabaseError: It cannot be had; the message says why.
            InfrastructureError: There is no process for it.
        """
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise

    async def rows(self, query: str, *, most: int, seconds: float, cell_characters: int = 200) -> Result:
        """See `Database`.

        Args:
            query: One statement.
            most: Rows wanted.
            seconds: How long it may take.
            cell_characters: Of a value's text, and bytes are told as how many they are; 0: all of it, and bytes.

        Raises:
            ToolError: It is wrong, or took too long or too much.
            InfrastructureError: There is no process for it.
        """
        message = {"do": "rows", "query": query, "most": most, "cell": cell_characters, "seconds": seconds}
        heard = await self._asked(message, seconds)
        try:
            columns = [_text(name) for name in heard[0]["columns"]]
            rows: list[list[Any]] = []
            for one in heard[1:]:
                rows += [[_value(cell) for cell in row] for row in one["rows"]]
                await asyncio.sleep(0)  # others have their turn in between
            if len(rows) > most or any(len(row) != len(columns) for row in rows):
                raise ValueError("no table")
        except (LookupError, TypeError, ValueError):
            raise self._brought_down() from None
        return Result(columns, rows)

    async def tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """See `Database`.

        Raises:
            ToolError: It took too long or too much.
            InfrastructureError: There is no process for it.
        """
        heard = await self._asked({"do": "tables", "seconds": seconds}, seconds)
        try:
            return {_text(name): (_text(sql), _text(columns)) for name, sql, columns in heard[0]["tables"]}
        except (LookupError, TypeError, ValueError):
            raise self._brought_down() from None

    async def close(self) -> None:
        """See `Database`. Whatever still runs is killed."""
        self._closed = True
        if self._worker is not None:
            self._worker.kill()
        async with self._lock:  # who waits for an answer hears of the end first
            await self._leave()

    async def _leave(self) -> None:
        """Without a process, and without a folder."""
        worker, self._worker = self._worker, None
        folder, self._folder = self._folder, None
        if worker is not None:
            await worker.ended()
        if folder is not None:
            await run_in_thread(folder.cleanup)

    async def _begin(self) -> None:
        origin = self.origin
        if not self._of_its_own:
            await self._start(self._path, _OPENING_SECONDS)
            return
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="whetstone-sql-", ignore_cleanup_errors=True)
        except OSError as error:
            raise InfrastructureError(f"there is no folder for a database: {error}") from None
        if origin.statements is not None:
            await self._start(self._own_file, _MAKING_SECONDS, statements=origin.statements)
        else:
            await self._start(self._own_file, _COPYING_SECONDS, source=self._path)

    async def _start(self, path: str, seconds: float, *, source: str = "", statements: str | None = None) -> None:
        """Have a process with this file open.

        Raises:
            DatabaseError: It cannot be.
            InfrastructureError: There is none.
        """
        if self._worker is not None:
            await self._worker.ended()
            self._worker = None
        if self._closed:
            raise InfrastructureError("the database was asked when its episode was over")
        memory = self.memory_mb * _MEBIBYTE
        message = {
            "kind": self.origin.kind,
            "path": path,
            "folder": self._folder.name if self._folder is not None else "",
            "source": source,
            "statements": statements,
            "read_only": self.origin.read_only,
            "memory": memory,
            "file": _bytes_of(source or path) + memory,
            "seconds": seconds,
        }
        self._worker = server_of(self.origin.kind).start()
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._worker.ask({"do": "begin"}, most_bytes=_MEBIBYTE)
        except (TimeoutError, EOFError, ResultTooLargeError):
            raise InfrastructureError("a process for a database does not start") from None
        try:
            async with asyncio.timeout(seconds + _GRACE_SECONDS):
                heard = await self._worker.ask(message, most_bytes=_MEBIBYTE)
        except TimeoutError:
            raise DatabaseError(f"it took longer than {seconds:g} s") from None
        except (EOFError, ResultTooLargeError):
            raise DatabaseError("the process that opens it came to an end") from None
        end = heard[-1]
        if end["end"] != "ok":
            self._worker.kill()
            said = {"time": f"it took longer than {seconds:g} s", "memory": f"it took more than {self.memory_mb} MiB"}
            raise DatabaseError(said.get(str(end["end"]), str(end.get("said"))))

    async def _asked(self, message: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
        """All that was answered but how it ended."""
        async with self._lock:
            if self._closed:
                raise InfrastructureError("the database was asked when its episode was over")
            if self._worker is None or not self._worker.alive:
                await self._again()
            assert self._worker is not None
            try:
                async with asyncio.timeout(seconds + _GRACE_SECONDS):
                    heard = await self._worker.ask(message, most_bytes=_MOST_RESULT_BYTES)
            except TimeoutError:
                raise ToolError(f"the query ran longer than {seconds:g} s and was ended{self._what_is_left}") from None
            except ResultTooLargeError:
                much = f"{_MOST_RESULT_BYTES // _MEBIBYTE} MiB"
                raise ToolError(f"the result is larger than {much}; the query was ended{self._what_is_left}") from None
            except EOFError:
                raise self._brought_down() from None
            left = ""
            if not heard[-1].get("stays"):  # it goes by itself, and might be asked once more before it has gone
                self._worker.kill()
                left = self._what_is_left
        end = heard.pop()
        if end["end"] == "ok":
            return heard
        if end["end"] == "time":
            raise ToolError(f"the query ran longer than {seconds:g} s and was ended{left}")
        if end["end"] == "memory":
            raise ToolError(f"the query took more memory than {self.memory_mb} MiB and was ended{left}")
        raise ToolError(str(end.get("said")))

    async def _again(self) -> None:
        """Have a process for what there is, after one that has ended.

        Raises:
            ToolError: It had to begin anew, and what was changed is lost.
            InfrastructureError: There is none.
        """
        try:
            await self._start(self._path if self._folder is None else self._own_file, _OPENING_SECONDS)
            return
        except DatabaseError as error:
            why = str(error)
            if not self._of_its_own:
                raise InfrastructureError(f"the database could not be opened again: {why}") from None
        await self._leave()
        try:
            await self._begin()
        except DatabaseError as error:
            raise InfrastructureError(f"the database could not be opened again: {why}; {error}") from None
        if not self.origin.read_only:
            raise ToolError(
                f"the database could not be opened again ({why}): it is as at first; what was changed is lost"
            )

    @property
    def _of_its_own(self) -> bool:
        return self.origin.statements is not None or not self.origin.read_only

    @property
    def _own_file(self) -> str:
        assert self._folder is not None
        return os.path.join(self._folder.name, f"database.{self.origin.kind}")

    @property
    def _what_is_left(self) -> str:
        """For a model, of an end that kept nothing but the file."""
        return "" if self.origin.read_only else "; what was not committed, and temporary tables, are gone"

    def _brought_down(self) -> ToolError:
        """Of an end without a word, or one that said what none would say."""
        if self._worker is not None:
            self._worker.kill()
        reasons = f"by more memory than {self.memory_mb} MiB, more time than it had, or a fault"
        return ToolError(f"the query brought the database down, {reasons}; it was ended{self._what_is_left}")


def _bytes_of(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else 0


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _value(cell: Any) -> Any:
    if isinstance(cell, dict):
        try:
            return base64.b64decode(_text(cell["bytes"]), validate=True)
        except binascii.Error:
            raise ValueError("no bytes") from None
    if cell is None or isinstance(cell, bool | int | float | str):
        return cell
    raise TypeError("no value")
