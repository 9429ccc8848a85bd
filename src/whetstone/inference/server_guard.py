"""Runs a command, and ends it with all it started once it or whoever asked for it is gone.

    python server_guard.py COMMAND...

Whoever asks holds the other end of its standard input: that closes however they end, by `kill -9` too. A byte that
comes through asks for the end at once. It needs nothing of ours, and is started as a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

_SECONDS_TO_END = 10.0


def main() -> None:
    """Exits as the command did."""
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_until_nobody_asks, args=(process,), daemon=True).start()
    status = process.wait()
    _signal(process, signal.SIGKILL)  # what it started has lost its head
    os._exit(status if status >= 0 else 128 - status)


def _until_nobody_asks(process: subprocess.Popen[bytes]) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    main()
