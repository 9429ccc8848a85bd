"""Database process: opens one file, gives up all other access, and answers queries until the client disconnects.

The kernel enforces limits on memory, on CPU time per query and on file size, and forbids core files. If the kernel has
Landlock and seccomp, file access is limited to the folder of the database, and system calls to a list.

Note:
    An interrupt is only a request: a long step of the library does not check for it. The client therefore kills the
    process after the deadline, and an open transaction is kept only if the query can be interrupted.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from whetstone.sandbox.guest import syscalls, wire
from whetstone.tools.database.guest.duck import DuckDB
from whetstone.tools.database.guest.engine import DatabaseEngine
from whetstone.tools.database.guest.sqlite import SQLite

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MOST_FRAME_BYTES = 32 << 20
"""Maximum size of a frame in bytes; a larger result is sent in several frames."""
_FRAME_BYTES = 1 << 18
_MOST_ROW_BYTES = MOST_FRAME_BYTES - 2 * _FRAME_BYTES
_MOST_SAID = 2000
_MOST_TABLES, _MOST_STATEMENT = 1000, 4000
_SECONDS_TO_ANSWER = 2
_OF_THE_MACHINE = (
    "/etc/localtime", "/usr/share/zoneinfo", "/proc/self/cgroup", "/proc/stat", "/proc/meminfo", "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
)  # fmt: skip
"""Files that DuckDB reads when it starts; if they are blocked, it aborts the process."""


class RowTooLargeError(Exception):
    """Row of a result that does not fit into a frame."""


def serve_queries(host: socket.socket, server: int, calls: Sequence[Any]) -> None:
    """Run a database process: open one file, and answer queries until the client disconnects.

    The fork server calls this function in a forked child.

    Args:
        host: Socket to the client.
        server: Process id of the fork server.
        calls: System call filters; see `confine.system_call_filters`.
    """
    _on_its_own(server)
    if wire.receive_frame(host) is None:
        return
    host.sendall(
        wire.frame_message(_status_frame("ok"))
    )  # from here on its time counts, and not that of the server's imports
    wanted = wire.receive_frame(host)
    if wanted is None:
        return
    _limit(wanted["memory"], wanted["file"])
    engine: DatabaseEngine = DuckDB() if wanted["kind"] == "duckdb" else SQLite()
    until = time.monotonic() + wanted["seconds"]
    try:
        _compute_no_longer_than(wanted["seconds"])
        _open(engine, wanted, until, calls)
        end = _status_frame("ok")
    except Exception as error:
        end = _error_frame(error, until, wanted["path"])
    host.sendall(wire.frame_message(end))
    while end["stays"]:
        request = wire.receive_frame(host)
        if request is None:
            return
        until = time.monotonic() + request["seconds"]
        try:
            _compute_no_longer_than(request["seconds"])
            with engine.interrupt_at(until):
                _answer(engine, request, host, wanted["path"])
            end = _status_frame("ok")
        except Exception as error:  # any exception of the library is an error of the query, reported to the client
            end = _error_frame(error, until, wanted["path"])
            end["stays"] = engine.is_usable() and (end["end"] != "memory" or engine.gives_memory_back)
        host.sendall(wire.frame_message(end))


def _open(engine: DatabaseEngine, wanted: dict[str, Any], until: float, calls: Sequence[Any]) -> None:
    path, own = wanted["path"], wanted["folder"]
    if wanted["source"]:
        engine.copy(wanted["source"], path)
    if own:
        _close_the_rest([(own, None)], calls)
    elif engine.opens_nothing_beside:
        _close_the_rest([(path, syscalls.READ), (f"{path}.wal", syscalls.READ)], calls)
    if wanted["statements"] is not None:
        engine.create(path, wanted["statements"], until)
    engine.open(path, read_only=wanted["read_only"], memory=wanted["memory"], file=wanted["file"])
    if not own and not engine.opens_nothing_beside:
        _close_the_rest([], calls)


def _answer(engine: DatabaseEngine, request: dict[str, Any], host: socket.socket, path: str) -> None:
    """Run a request and send all frames of its response except the last, which is the status."""
    if request["do"] == "tables":
        tables = engine.list_tables()[:_MOST_TABLES]
        host.sendall(
            wire.frame_message(
                {"tables": [[name, sql[:_MOST_STATEMENT], _columns(engine, name)] for name, sql in tables]}
            )
        )
        return
    cursor = engine.execute(request["query"])
    # DuckDB has no cursor for an empty query
    columns = [str(column[0]) for column in cursor.description or ()] if cursor is not None else []
    host.sendall(wire.frame_message({"columns": columns}))
    if columns:
        for rows in _pieces(iter(cursor.fetchone, None), request["most"], request["cell"], path):
            host.sendall(rows)


def _columns(engine: DatabaseEngine, table: str) -> str:
    """Return the column names of a table, separated by commas.

    For a view that cannot be read, the result is the error text.
    """
    quoted = table.replace('"', '""')
    try:
        description = engine.execute(f'SELECT * FROM "{quoted}" LIMIT 0').description or ()
    except Exception as error:
        return f"[{str(error)[:100]}]"
    return ", ".join(str(column[0]) for column in description)


def _pieces(rows: Iterable[Sequence[Any]], most: int, cell: int, path: str) -> Iterable[bytes]:
    """Yield frames with rows, none above the maximum size of a frame.

    Args:
        rows: Rows of a result.
        most: Maximum number of rows in total.
        cell: Maximum length of a cell's text; 0: no limit.
        path: Path of the database, which is replaced by its name.

    Raises:
        RowTooLargeError: If a row does not fit into a frame.
    """
    gathered: list[str] = []
    size = 0
    for row in itertools.islice(rows, most):
        text = json.dumps([_plain(value, cell, path) for value in row])
        if len(text) > _MOST_ROW_BYTES:
            raise RowTooLargeError(f"a row of more than {_MOST_ROW_BYTES >> 20} MiB")
        gathered.append(text)
        size += len(text)
        if size > _FRAME_BYTES:
            yield _rows_frame(gathered)
            gathered, size = [], 0
    if gathered:
        yield _rows_frame(gathered)


def _rows_frame(rows: Sequence[str]) -> bytes:
    body = f'{{"rows": [{", ".join(rows)}]}}'.encode()
    return wire.LENGTH.pack(len(body)) + body


def _plain(value: Any, cell: int, path: str) -> Any:
    """Return a cell's value as JSON can express it.

    A text has at most `cell` characters and bytes are replaced by their number, unless `cell` is 0. The path of the
    database is replaced by its name: it differs between machines and episodes, and a model reads it.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]" if cell else {"bytes": base64.b64encode(value).decode()}
    text = str(value).replace(path, os.path.basename(path))
    return text[:cell] if cell else text


def _status_frame(how: str, message: str = "") -> dict[str, Any]:
    """Return the status frame: the outcome, its message, and whether the process accepts another request."""
    return {"end": how, "said": message[:_MOST_SAID], "stays": how == "ok"}


def _error_frame(error: Exception, until: float, path: str) -> dict[str, Any]:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException":
        return _status_frame("memory")
    text = str(error).replace(path, os.path.basename(path)) or type(error).__name__
    return _status_frame("time") if time.monotonic() > until else _status_frame("error", text)


def _on_its_own(server: int) -> None:
    """Detach from the fork server's session and terminal.

    Make this process end when the server ends.
    """
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    os.close(null)
    if sys.platform == "linux":
        syscalls.set_parent_death_signal()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if the machine is out of memory, the kernel kills this process first
    if os.getppid() != server:
        os._exit(0)


def _limit(memory: int, file: int) -> None:
    """Set the resource limits of this process, in bytes: memory beyond its current use, and file size."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        present_kib = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
        memory += present_kib << 10
    # RLIMIT_AS would count what threads and allocators reserve and never touch
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, file)):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _compute_no_longer_than(seconds: float) -> None:
    """Limit the CPU time from now on; the kernel kills the process if the interrupt fails."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds) + _SECONDS_TO_ANSWER
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _close_the_rest(allowed: list[tuple[str, int | None]], calls: Sequence[Any]) -> None:
    """Block all other files, the network and program execution, as far as the kernel supports it."""
    if sys.platform != "linux":
        return
    syscalls.set_no_new_privs()
    if syscalls.landlock_version():
        syscalls.restrict_paths([*allowed, *((path, syscalls.READ) for path in _OF_THE_MACHINE)])
    for each in calls:
        each.load()
