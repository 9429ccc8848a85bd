"""The seam of the sandbox room: what came of a call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a call ended. The list is closed."""

    OK = "ok"
    ERROR = "error"
    """The code raised an exception, or the command is none."""
    TIMEOUT = "timeout"
    """It ran longer than `wall_seconds`."""
    CPU = "cpu"
    """A process computed longer than `cpu_seconds`."""
    MEMORY = "memory"
    """It wanted more memory than there is for it."""
    OUTPUT = "output"
    """It printed more than `output_bytes`."""
    DISK = "disk"
    """Its files were more or larger than its folder may hold. Where the folder is a file system of its own, the code
    gets the system's error instead."""
    CRASHED = "crashed"
    """The interpreter ended itself, by a fault, a signal or `os._exit`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call. Everything in it was said by foreign code and is text, nothing more."""

    ending: Ending
    output: str = ""
    """What was printed, standard output and error as they came, within `output_characters`."""
    value: str | None = None
    """The last expression's value, as `repr` shows it."""
    error: str | None = None
    """The shortened traceback, or what happened, in words for a model."""
    images: tuple[bytes, ...] = ()
    """Plots and pictures, as PNG."""
    exit_code: int | None = None
    """Of a shell command."""
    data: bytes | None = None
    """Of a file that was read."""
    restarted: bool = False
    """Whether the interpreter is gone, and with it its variables; the next call has a new one."""
    seconds: float = 0.0
    """From the first instruction to the answer."""
    queue_seconds: float = 0.0
    """Waiting before that, for a place or a session."""
    cpu_seconds: float = 0.0
    """Computed, as the other side measured it."""
