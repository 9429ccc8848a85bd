"""Execution of a function on untrusted model output in a child process, which is restricted and killed after a timeout.

Note:
    A deadline of the event loop cannot interrupt a power tower or an endless regular expression, and a signal waits for
    the end of a multiplication. Only another process can be ended.

Use it in a process with one thread, such as games with `isolation = "process"`: a fork of a process with more threads
may hang.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from whetstone.sandbox.guest import confine, syscalls
from whetstone.sandbox.isolation import readable_paths

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MEMORY = 1 << 30
"""Memory that the child can allocate in addition to the memory of this process, in bytes."""
_MAX_BYTES = 1 << 20
"""Maximum bytes of a result."""


def run_in_subprocess(function: Callable[[], Any], *, seconds: float) -> Any:
    """Call a function in a forked child process and return its result via JSON.

    The child has no network, no file access except to readable system paths, and at most 1 GiB of additional memory.

    Args:
        function: Function without arguments whose result JSON can represent.
        seconds: Timeout in seconds.

    Returns:
        The result; None if the function raised an exception, timed out or needed more memory.
    """
    calls = _filters()  # made once, before the fork, for every child
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(function, writer, seconds, calls)
    os.close(writer)
    try:
        return _read(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(function: Callable[[], Any], pipe: int, seconds: float, calls: Any) -> None:
    """Run the function in the child process, write its result to the pipe and exit."""
    try:
        _drop_rights(seconds, calls)
        data = json.dumps(function()).encode()
        while data:
            data = data[os.write(pipe, data) :]
    finally:
        os._exit(0)


def _drop_rights(seconds: float, calls: Sequence[Any]) -> None:
    """Restrict this process: CPU time, memory, files and system calls."""
    for what, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, _size() + _MEMORY),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError):
        syscalls.set_no_new_privs()
        syscalls.restrict_paths([(path, syscalls.READ) for path in readable_paths()])
    for each in calls:
        with contextlib.suppress(OSError):
            each.load()


@functools.cache
def _filters() -> list[Any]:
    """Return the system call filters of the child.

    Empty if the kernel does not support them.
    """
    return confine.system_call_filters(own_files=False) if confine.FILTERS else []


def _size() -> int:
    """Return the size of this process's memory in bytes; on systems other than Linux, more than any process has."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 46


def _read(pipe: int, until: float) -> Any:
    """Read a JSON value from a pipe until a time of the monotonic clock.

    Returns:
        The value; None if it is incomplete or invalid.
    """
    data = b""
    while len(data) < _MAX_BYTES:
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(pipe, 1 << 16) if ready else b""
        if not piece:
            break
        data += piece
    try:
        return json.loads(data)
    except ValueError:
        return None
