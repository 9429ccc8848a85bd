"""SQLite or DuckDB file, opened in a dedicated process that is killed if a query exceeds its time or memory.

If an episode may change the database, it gets a copy in a temporary folder, as does a database made by the statements
of a task. After a kill, the next process opens the same file, so committed changes are kept.

Note:
    If the process ends during a query, the query is at fault and the model receives an error. If it ends between
    queries, it is restarted without a message.
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
from whetstone.tools.database.database_server import DatabaseWorker, ResultTooLargeError, get_fork_server
from whetstone.tools.database.protocol import QueryResult
from whetstone.tools.thread_runner import run_in_thread

_MEBIBYTE = 1 << 20
_GRACE_SECONDS = 1.0
"""Time in seconds that an interrupted process has to report the interrupt."""
_MAKING_SECONDS, _OPENING_SECONDS, _COPYING_SECONDS = 10.0, 30.0, 600.0
_START_SECONDS = 30.0
"""Time limit for the start of a process in seconds; the first one waits for the imports of the fork server."""
_MOST_RESULT_BYTES = 64 * _MEBIBYTE


@dataclass(frozen=True, slots=True)
class DatabaseOrigin:
    """Initial state of a SQLite or DuckDB database."""

    kind: Literal["sqlite", "duckdb"]
    """Library that reads the database."""
    path: str = ""
    """Path of the file; empty if statements create the database."""
    statements: str | None = None
    """SQL statements that create the database (SQLite only); None if there is a file."""
    read_only: bool = True
    """Whether changes are forbidden; otherwise changes apply to a copy, and the file stays unchanged."""


class DatabaseProcess:
    """SQLite or DuckDB database of an episode in a dedicated process; implements `Database`.

    Args:
        origin: Initial state of the database.
        memory_mb: Memory limit of a query, and maximum growth of the file, in MiB.
    """

    def __init__(self, origin: DatabaseOrigin, *, memory_mb: int = 512) -> None:
        self.origin, self.memory_mb = origin, memory_mb
        self._path = os.path.abspath(origin.path)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._worker: DatabaseWorker | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Start the process and open the database in its initial state.

        Raises:
            DatabaseError: If the database cannot be created or opened; the message has the reason.
            InfrastructureError: If no process can be started.
        """
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise

    async def fetch_rows(self, query: str, *, most: int, seconds: float, cell_characters: int = 200) -> QueryResult:
        """Run one SQL statement in the process and return its rows.

        Args:
            query: SQL statement.
            most: Maximum number of rows.
            seconds: Time limit in seconds.
            cell_characters: Maximum length of a cell's text; bytes are replaced by their number. 0: no limit.

        Raises:
            ToolError: If the statement is invalid, or exceeded its time or memory.
            InfrastructureError: If no process can be started.
        """
        message = {"do": "rows", "query": query, "most": most, "cell": cell_characters, "seconds": seconds}
        frames = await self._request(message, seconds)
        try:
            columns = [_text(name) for name in frames[0]["columns"]]
            rows: list[list[Any]] = []
            for one in frames[1:]:
                rows += [[_value(cell) for cell in row] for row in one["rows"]]
                await asyncio.sleep(0)  # others have their turn in between
            if len(rows) > most or any(len(row) != len(columns) for row in rows):
                raise ValueError("no table")
        except (LookupError, TypeError, ValueError):
            raise self._brought_down() from None
        return QueryResult(columns, rows)

    async def list_tables(self, *, seconds: float) -> dict[str, tuple[str, str]]:
        """Return (`CREATE` statement, columns separated by commas) by table name.

        Raises:
            ToolError: If the query exceeded its time or memory.
            InfrastructureError: If no process can be started.
        """
        frames = await self._request({"do": "tables", "seconds": seconds}, seconds)
        try:
            return {_text(name): (_text(sql), _text(columns)) for name, sql, columns in frames[0]["tables"]}
        except (LookupError, TypeError, ValueError):
            raise self._brought_down() from None

    async def close(self) -> None:
        """Kill the process, also during a query, and delete the copy of the database."""
        self._closed = True
        if self._worker is not None:
            self._worker.kill()
        async with self._lock:  # a waiting request receives the end of the process first
            await self._leave()

    async def _leave(self) -> None:
        """Wait for the process to end, and delete the folder with the copy of the database."""
        worker, self._worker = self._worker, None
        folder, self._folder = self._folder, None
        if worker is not None:
            await worker.wait_until_ended()
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
            raise InfrastructureError(
                f"sql: no temporary folder can be created for the database: {error}; set TMPDIR to another folder"
            ) from None
        if origin.statements is not None:
            await self._start(self._own_file, _MAKING_SECONDS, statements=origin.statements)
        else:
            await self._start(self._own_file, _COPYING_SECONDS, source=self._path)

    async def _start(self, path: str, seconds: float, *, source: str = "", statements: str | None = None) -> None:
        """Start a process and open this file in it.

        Raises:
            DatabaseError: If the file cannot be opened.
            InfrastructureError: If no process can be started.
        """
        if self._worker is not None:
            await self._worker.wait_until_ended()
            self._worker = None
        if self._closed:
            raise InfrastructureError(
                "a tool queried the database after the end of its episode; await all queries within the call"
            )
        memory = self.memory_mb * _MEBIBYTE
        message = {
            "kind": self.origin.kind,
            "path": path,
            "folder": self._folder.name if self._folder is not None else "",
            "source": source,
            "statements": statements,
            "read_only": self.origin.read_only,
            "memory": memory,
            "file": _read_bytes(source or path) + memory,
            "seconds": seconds,
        }
        self._worker = get_fork_server(self.origin.kind).start()
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._worker.send_request({"do": "begin"}, most_bytes=_MEBIBYTE)
        except (TimeoutError, EOFError, ResultTooLargeError):
            raise InfrastructureError(f"sql: a database process did not start within {_START_SECONDS:g} s") from None
        try:
            async with asyncio.timeout(seconds + _GRACE_SECONDS):
                frames = await self._worker.send_request(message, most_bytes=_MEBIBYTE)
        except TimeoutError:
            raise DatabaseError(f"it took longer than {seconds:g} s") from None
        except (EOFError, ResultTooLargeError):
            raise DatabaseError("the process that opens the database ended") from None
        end = frames[-1]
        if end["end"] != "ok":
            self._worker.kill()
            reasons = {
                "time": f"it took longer than {seconds:g} s",
                "memory": f"it took more than {self.memory_mb} MiB",
            }
            raise DatabaseError(reasons.get(str(end["end"]), str(end.get("said"))))

    async def _request(self, message: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
        """Send a request to the process; return all frames of the response except the status.

        Raises:
            ToolError: If the query failed or exceeded a limit.
            InfrastructureError: If no process can be started.
        """
        async with self._lock:
            if self._closed:
                raise InfrastructureError(
                    "a tool queried the database after the end of its episode; await all queries within the call"
                )
            if self._worker is None or not self._worker.is_alive:
                await self._restart()
            assert self._worker is not None
            try:
                async with asyncio.timeout(seconds + _GRACE_SECONDS):
                    frames = await self._worker.send_request(message, most_bytes=_MOST_RESULT_BYTES)
            except TimeoutError:
                raise ToolError(f"the query ran longer than {seconds:g} s and was ended{self._what_is_left}") from None
            except ResultTooLargeError:
                much = f"{_MOST_RESULT_BYTES // _MEBIBYTE} MiB"
                raise ToolError(f"the result is larger than {much}; the query was ended{self._what_is_left}") from None
            except EOFError:
                raise self._brought_down() from None
            left = ""
            if not frames[-1].get("stays"):  # it goes by itself, and might be asked once more before it has gone
                self._worker.kill()
                left = self._what_is_left
        end = frames.pop()
        if end["end"] == "ok":
            return frames
        if end["end"] == "time":
            raise ToolError(f"the query ran longer than {seconds:g} s and was ended{left}")
        if end["end"] == "memory":
            raise ToolError(f"the query took more memory than {self.memory_mb} MiB and was ended{left}")
        raise ToolError(str(end.get("said")))

    async def _restart(self) -> None:
        """Start a new process after the last one ended, with the current file if it can be opened.

        Raises:
            ToolError: If the database was reset to its initial state, so that all changes are lost.
            InfrastructureError: If the database cannot be opened again.
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
        """Note for the model that only committed changes were kept.

        The result is empty if the database is read-only.
        """
        return "" if self.origin.read_only else "; what was not committed, and temporary tables, are gone"

    def _brought_down(self) -> ToolError:
        """Return the error for a process that ended without a status, or sent an invalid one.

        Kill the process.
        """
        if self._worker is not None:
            self._worker.kill()
        reasons = f"by more memory than {self.memory_mb} MiB, more time than it had, or a fault"
        return ToolError(f"the query brought the database down, {reasons}; it was ended{self._what_is_left}")


def _read_bytes(path: str) -> int:
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
