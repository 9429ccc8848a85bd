"""Data types of the sandbox: the outcome of a call and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a call ended. The list is closed."""

    OK = "ok"
    ERROR = "error"
    """The code raised an exception, or the command does not exist."""
    TIMEOUT = "timeout"
    """The call ran longer than `wall_seconds`."""
    CPU = "cpu"
    """A process computed longer than `cpu_seconds`."""
    MEMORY = "memory"
    """The call requested more memory than its limit."""
    OUTPUT = "output"
    """The call printed more than `output_bytes`."""
    DISK = "disk"
    """The files exceed the limits of the folder. If the folder is a separate file system, the code receives an error of
    the system instead."""
    CRASHED = "crashed"
    """The interpreter ended itself, by a fault, a signal or `os._exit`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a call. All fields come from untrusted code and are text, nothing more."""

    ending: Ending
    output: str = ""
    """Standard output and standard error in order of arrival, within `output_characters`."""
    value: str | None = None
    """Value of the last expression as `repr` shows it."""
    error: str | None = None
    """Shortened traceback, or a description of the failure for a model."""
    images: tuple[bytes, ...] = ()
    """Plots and pictures as PNG."""
    exit_code: int | None = None
    """Exit code of a shell command."""
    data: bytes | None = None
    """Content of a file that was read."""
    restarted: bool = False
    """Whether the interpreter and its variables are lost; the next call starts a new one."""
    seconds: float = 0.0
    """Duration from the first instruction to the reply."""
    queue_seconds: float = 0.0
    """Time spent waiting before that, for a free slot or a session."""
    cpu_seconds: float = 0.0
    """Processor time in seconds, as measured by the guest."""
