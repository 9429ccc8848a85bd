"""Process supervisor: runs a command, and ends it with all its child processes when the command or the caller exits.

    python process_supervisor.py COMMAND...

The caller has the other end of the supervisor's standard input, which closes however the caller exits, also by `kill
-9`. A byte on standard input requests the end immediately. The module imports only the standard library and is started
as a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

_SECONDS_TO_END = 10.0


def supervise_process() -> None:
    """Run the command of `sys.argv` and exit with its status.

    The command runs in a separate session, whose processes are killed when the command exits.
    """
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_until_nobody_asks, args=(process,), daemon=True).start()
    status = process.wait()
    _signal(process, signal.SIGKILL)  # child processes that are left
    os._exit(status if status >= 0 else 128 - status)


def _until_nobody_asks(process: subprocess.Popen[bytes]) -> None:
    """Wait until standard input is closed or receives a byte, then end the command.

    A closed input gives the command ten seconds to terminate; a byte kills it immediately.
    """
    if not os.read(sys.stdin.fileno(), 1):
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    supervise_process()
