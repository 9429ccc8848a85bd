"""Fork server of database processes: a Python process with the library imported, which forks in milliseconds.

It never runs a query. It also kills processes on request, because only the parent can be sure that a process ID still
belongs to its child.

Note:
    Only the thread that forks survives in the child, so connections are opened only there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

from whetstone.sandbox.guest import confine, wire
from whetstone.tools.database.guest import worker


def run_database_server() -> None:
    """Start and kill database processes on request until the client closes the connection.

    Then kill all of them.

    `DatabaseServer` starts this function in a Python process: its arguments are a file descriptor and the library.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    importlib.import_module(sys.argv[2])
    time.tzset()  # reads the time zone file, which is blocked later
    calls = confine.system_call_filters(own_files=False) if confine.FILTERS else []
    gc.collect()
    gc.freeze()  # memory is shared with all children; a collection would copy it
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(awake, select.POLLIN)
    children: dict[int, int] = {}
    while True:
        ready = {file for file, _ in poll.poll()}
        if awake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(awake, 4096)
        if control.fileno() in ready:
            message, files = wire.receive_packet(control)
            if message is None:
                break
            if message["do"] == "start":
                _start(control, (awake, wake), message["number"], files, children, calls)
            elif message["number"] in children:
                _kill(children[message["number"]])
        _bury(children)
    for child in children.values():
        _kill(child)


def _start(
    control: socket.socket,
    own: tuple[int, int],
    number: int,
    files: list[int],
    children: dict[int, int],
    calls: list[Any],
) -> None:
    server = os.getpid()
    try:
        child = os.fork()
    except OSError:
        child = -1  # the socket is closed below, which reports the failure
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            for file in own:
                os.close(file)
            worker.serve_queries(socket.socket(fileno=files[0]), server, calls)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    for file in files:
        os.close(file)
    if child > 0:
        children[number] = child


def _bury(children: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while child := os.waitpid(-1, os.WNOHANG)[0]:
            for number in [number for number, one in children.items() if one == child]:
                del children[number]


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
