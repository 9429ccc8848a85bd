"""Inference server as a child process in another Python environment, which ends with this process.

Note:
    Such a server starts child processes, and one that outlives its run keeps a GPU occupied. A supervisor
    (`process_supervisor.py`) ends all of them, however this process exits.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.errors import EngineError

_GUARD = Path(__file__).with_name("process_supervisor.py")
_SECONDS_TO_END = 20.0
"""Time until a process that does not end is killed, in seconds."""
_TAIL_BYTES = 8192
_OF_OUR_ENVIRONMENT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class ServerProcess:
    """Server process that this engine starts, under a supervisor.

    Args:
        command: Command line; the first word is the path of the interpreter.
        environment: Environment variables in addition to those of this process, without variables of its Python
            environment.

    Raises:
        EngineError: If the interpreter does not exist.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        if not os.access(command[0], os.X_OK):
            raise EngineError(f"{command[0]}: no such interpreter; set the interpreter of the server's environment")
        self._log = tempfile.TemporaryFile(prefix="whetstone-server-")  # noqa: SIM115 (it is read until the end)
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_OUR_ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**inherited, **environment},
            start_new_session=True,  # Ctrl-C reaches only this process
            bufsize=0,  # output to an exited process is not buffered
        )

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    @property
    def last_words(self) -> str:
        """Last line of the server's output with an error, else its last line, for messages.

        At most 300 characters; `nothing` if there is no output.
        """
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return (errors or lines or ["nothing"])[-1][-300:]

    def kill(self) -> None:
        """Kill the process and its child processes, without waiting."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has exited, or is about to
            self._process.stdin.write(b"!")

    def end(self) -> None:
        """Terminate the process and its child processes, and wait until they have ended.

        After 20 seconds they are killed.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def free_port() -> int:
    """Return a TCP port of this machine that no process uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_flags(options: Mapping[str, Any]) -> list[str]:
    """Convert options to command-line flags.

    True gives a flag without a value; False and None give no flag.

    >>> as_flags({"max_model_len": 512, "enforce_eager": True, "enable_lora": False})
    ['--max-model-len', '512', '--enforce-eager']
    """
    words: list[str] = []
    for name, value in options.items():
        if value is False or value is None:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, Mapping | list) else str(value))
    return words
