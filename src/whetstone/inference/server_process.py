"""How is an inference server run beside a training run? As a process of another environment, that ends with ours.

Easy to get wrong: such a server starts processes of its own, and one that outlives its run holds a GPU until somebody
looks. A guard (`server_guard.py`) ends all of them, however ours ends.
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

_GUARD = Path(__file__).with_name("server_guard.py")
_SECONDS_TO_END = 20.0
_TAIL_BYTES = 8192
_OF_OUR_ENVIRONMENT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class ServerProcess:
    """A server that runs from when this is made until `end`.

    Args:
        command: Its words.
        environment: Variables beside those of ours.

    Raises:
        EngineError: There is no such program.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        if not os.access(command[0], os.X_OK):
            raise EngineError(f"{command[0]}: no Python there; name the interpreter of the server's environment")
        self._log = tempfile.TemporaryFile(prefix="whetstone-server-")  # noqa: SIM115 (it is read until the end)
        ours = {name: value for name, value in os.environ.items() if name not in _OF_OUR_ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**ours, **environment},
            start_new_session=True,  # Ctrl-C is ours alone
            bufsize=0,  # what is written to one that has ended is not kept for later
        )

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    @property
    def last_words(self) -> str:
        """What it said at last that names an error, else its last line."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return (errors or lines or ["nothing"])[-1][-300:]

    def kill(self) -> None:
        """End it at once, without waiting until it is gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, or was asked to
            self._process.stdin.write(b"!")

    def end(self) -> None:
        """Ask it to end, and see that it does."""
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
    """A port nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_flags(options: Mapping[str, Any]) -> list[str]:
    """Options of a command line.

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
