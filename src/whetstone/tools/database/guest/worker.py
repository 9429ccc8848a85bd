"""A database's process: it opens one file, gives up all else, and answers until the other side is gone.

Within its limits the kernel keeps it: memory, the time it may compute for a query, the size of a file, no core file.
Where the kernel has them, Landlock leaves it the database's own folder, and a list of system calls what it needs.

Easy to get wrong: an interrupt is a request. One long step of the library never looks for it, so who asks ends the
process when the time is over, and only what can be interrupted keeps a transaction that is open.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import resource
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from whetstone.sandbox.guest import kernel, wire
from whetstone.tools.database.guest.duck import DuckDB
from whetstone.tools.database.guest.engine import Engine
from whetstone.tools.database.guest.sqlite import SQLite

MOST_FRAME_BYTES = 32 << 20
"""Of one answer; a result with more comes in several."""
_FRAME_BYTES = 1 << 18
_MOST_ROW_BYTES = MOST_FRAME_BYTES - 2 * _FRAME_BYTES
_MOST_SAID = 2000
_MOST_TABLES, _MOST_STATEMENT = 1000, 4000
_SECONDS_TO_ANSWER = 2
_OF_THE_MACHINE = (
    "/etc/localtime", "/usr/share/zoneinfo", "/proc/self/cgroup", "/proc/stat", "/proc/meminfo", "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
)  # fmt: skip
"""What DuckDB asks when it begins; without an answer it ends the process."""


class RowTooLargeError(Exception):
    """A row does not fit into an answer."""


def serve(host: socket.socket, server: int, calls: Sequence[Any]) -> None:
    """Until the other side is gone.

    Args:
        server: The parent's number.
        calls: Filters of system calls; see `confine.system_call_filters`.
    """
    _on_its_own(server)
    if wire.receive_frame(host) is None:
        return
    host.sendall(wire.frame(_ended("ok")))  # from here on its time counts, and not that of the server's imports
    wanted = wire.receive_frame(host)
    if wanted is None:
        return
    _limit(wanted["memory"], wanted["file"])
    engine: Engine = DuckDB() if wanted["kind"] == "duckdb" else SQLite()
    until = time.monotonic() + wanted["seconds"]
    try:
        _compute_no_longer_than(wanted["seconds"])
        _open(engine, wanted, until, calls)
        end = _ended("ok")
    except Exception as error:
        end = _failed(error, until, wanted["path"])
    host.sendall(wire.frame(end))
    while end["stays"]:
        asked = wire.receive_frame(host)
        if asked is None:
            return
        until = time.monotonic() + asked["seconds"]
        try:
            _compute_no_longer_than(asked["seconds"])
            with engine.until(until):
                _answer(engine, asked, host, wanted["path"])
            end = _ended("ok")
        except Exception as error:  # whatever a library raises is of the query, and is said to who asked it
            end = _failed(error, until, wanted["path"])
            end["stays"] = engine.usable() and (end["end"] != "memory" or engine.gives_memory_back)
        host.sendall(wire.frame(end))


def _open(engine: Engine, wanted: dict[str, Any], until: float, calls: Sequence[Any]) -> None:
    path, own = wanted["path"], wanted["folder"]
    if wanted["source"]:
        engine.copy(wanted["source"], path)
    if own:
        _close_the_rest([(own, None)], calls)
    elif engine.opens_nothing_beside:
        _close_the_rest([(path, kernel.READ), (f"{path}.wal", kernel.READ)], calls)
    if wanted["statements"] is not None:
        engine.make(path, wanted["statements"], until)
    engine.open(path, read_only=wanted["read_only"], memory=wanted["memory"], file=wanted["file"])
    if not own and not engine.opens_nothing_beside:
        _close_the_rest([], calls)


def _answer(engine: Engine, asked: dict[str, Any], host: socket.socket, path: str) -> None:
    """All of the answer but how it ended."""
    if asked["do"] == "tables":
        found = engine.tables()[:_MOST_TABLES]
        host.sendall(
            wire.frame({"tables": [[name, sql[:_MOST_STATEMENT], _columns(engine, name)] for name, sql in found]})
        )
        return
    cursor = engine.execute(asked["query"])
    # DuckDB has no cursor for a query that says nothing
    columns = [str(column[0]) for column in cursor.description or ()] if cursor is not None else []
    host.sendall(wire.frame({"columns": columns}))
    if columns:
        for rows in _pieces(iter(cursor.fetchone, None), asked["most"], asked["cell"], path):
            host.sendall(rows)


def _columns(engine: Engine, table: str) -> str:
    """The names of its columns; why they are not known, of a view that cannot be read."""
    quoted = table.replace('"', '""')
    try:
        description = engine.execute(f'SELECT * FROM "{quoted}" LIMIT 0').description or ()
    except Exception as error:
        return f"[{str(error)[:100]}]"
    return ", ".join(str(column[0]) for column in description)


def _pieces(rows: Iterable[Sequence[Any]], most: int, cell: int, path: str) -> Iterable[bytes]:
    """Frames of up to `most` rows, none larger than a frame may be."""
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
    """Return a value as JSON has it: `cell` characters at most, bytes as their number; if `cell` is 0, all of it.

    The path of the database is replaced by its name: it differs between machines and episodes, and a model reads it.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]" if cell else {"bytes": base64.b64encode(value).decode()}
    text = str(value).replace(path, os.path.basename(path))
    return text[:cell] if cell else text


def _ended(how: str, said: str = "") -> dict[str, Any]:
    """How it ended, and whether the process stays for what is asked next."""
    return {"end": how, "said": said[:_MOST_SAID], "stays": how == "ok"}


def _failed(error: Exception, until: float, path: str) -> dict[str, Any]:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException":
        return _ended("memory")
    text = str(error).replace(path, os.path.basename(path)) or type(error).__name__
    return _ended("time") if time.monotonic() > until else _ended("error", text)


def _on_its_own(server: int) -> None:
    """Leave the server's session and its terminal; go when it goes."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    os.close(null)
    if sys.platform == "linux":
        kernel.end_with_parent()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # where the machine itself has too little memory, this one goes first
    if os.getppid() != server:
        os._exit(0)


def _limit(memory: int, file: int) -> None:
    """What the kernel keeps it to, in bytes, beyond what it has now."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        held = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
        memory += held << 10
    # RLIMIT_AS would count what threads and allocators reserve and never touch
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, file)):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _compute_no_longer_than(seconds: float) -> None:
    """From now on; the kernel ends it where nobody else does."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds) + _SECONDS_TO_ANSWER
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _close_the_rest(allowed: list[tuple[str, int | None]], calls: Sequence[Any]) -> None:
    """No file but these, no network, no program; as far as this kernel can."""
    if sys.platform != "linux":
        return
    kernel.gain_nothing()
    if kernel.landlock_version():
        kernel.landlock([*allowed, *((path, kernel.READ) for path in _OF_THE_MACHINE)])
    for each in calls:
        each.load()
