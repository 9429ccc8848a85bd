"""Outcome of a call in the sandbox, and how the call ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a call in the sandbox ended; the list of values is complete."""

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
    """Outcome of a call in the sandbox. All fields come from untrusted code and must be treated as plain data."""

    ending: Ending
    """How the call ended."""
    output: str = ""
    """Standard output and standard error in order of arrival, cut to `output_characters`."""
    value: str | None = None
    """`repr` of the last expression's value; None if there is none."""
    error: str | None = None
    """Shortened traceback of an exception, or a description of the failure, as the model reads it.

    None without an error.
    """
    images: tuple[bytes, ...] = ()
    """Plots and images as PNG files."""
    exit_code: int | None = None
    """Exit code of a shell command; None for other calls."""
    data: bytes | None = None
    """Content of a file that was read; None for other calls."""
    restarted: bool = False
    """Whether the interpreter and its variables are lost; the next call starts a new interpreter."""
    seconds: float = 0.0
    """Duration of the call in seconds, from sending the request to the reply."""
    queue_seconds: float = 0.0
    """Time in seconds that the call waited before it was sent: for a free slot, or for the start of the session."""
    cpu_seconds: float = 0.0
    """Processor time in seconds, as the untrusted guest reports it."""
