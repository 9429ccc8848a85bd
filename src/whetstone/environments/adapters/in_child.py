"""What does a function come to that works on what a model said? Called in a child of this process, which is killed when
it is late, and which can do little but compute.

Easy to get wrong: a deadline of the event loop cannot interrupt a power tower or a pattern that never ends, and an
alarm waits for the end of the multiplication. Only another process can be ended.

For a process with one thread, as games have that declare `isolation = "process"`: a fork of others may hang.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from whetstone.sandbox.guest import confine, kernel
from whetstone.sandbox.isolation import readable

_MEMORY = 1 << 30
_MOST_BYTES = 1 << 20


def called_in_child(function: Callable[[], Any], *, seconds: float) -> Any:
    """What a function returns, as JSON has it; None where it raised, was late, or used a gigabyte.

    Args:
        seconds: How long it may take.
    """
    calls = _filters()  # made once, before the fork, for every child
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(function, theirs, seconds, calls)
    os.close(theirs)
    try:
        return _read(ours, time.monotonic() + seconds)
    finally:
        os.close(ours)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(function: Callable[[], Any], pipe: int, seconds: float, calls: Any) -> None:
    """The child's whole life."""
    try:
        _give_up(seconds, calls)
        data = json.dumps(function()).encode()
        while data:
            data = data[os.write(pipe, data) :]
    finally:
        os._exit(0)


def _give_up(seconds: float, calls: Sequence[Any]) -> None:
    """Whatever this machine lets a process give up: more memory and time, files, the network."""
    for what, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, _size() + _MEMORY),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError):
        kernel.gain_nothing()
        kernel.landlock([(path, kernel.READ) for path in readable()])
    for each in calls:
        with contextlib.suppress(OSError):
            each.load()


@functools.cache
def _filters() -> list[Any]:
    """What the kernel is to refuse; nothing where it cannot be asked to."""
    return confine.system_call_filters(own_files=False) if confine.FILTERS else []


def _size() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _read(pipe: int, until: float) -> Any:
    data = b""
    while len(data) < _MOST_BYTES:
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(pipe, 1 << 16) if ready else b""
        if not piece:
            break
        data += piece
    try:
        return json.loads(data)
    except ValueError:
        return None
