"""Interfaces of the sandbox: a session, the outcome of a call and how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


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


class CodeTools(Protocol):
    """Tools of the host that code in the sandbox calls as functions of an object `tools`."""

    @property
    def parameter_names(self) -> Mapping[str, Sequence[str]]:
        """Names of the parameters by tool, in order."""
        ...

    async def call_tool(self, name: Any, arguments: Any) -> Mapping[str, Any]:
        """Call a tool and return `text`, `error`, or `ended` if the code must end.

        Args:
            name: Name of the tool, as untrusted code sent it.
            arguments: Arguments by name, as untrusted code sent them.
        """
        ...


class SandboxSession(Protocol):
    """Commands and files of one episode, in a sandbox of this machine (`Session`) or in a container."""

    files: dict[str, bytes]
    """Contents by path, written when the session starts."""

    async def python(self, code: str, *, wall_seconds: float | None = None, tools: CodeTools | None = None) -> Outcome:
        """Run Python code like a notebook cell; it can call `tools`.

        Raises:
            InfrastructureError: The sandbox itself has failed; nothing is known about the code.
        """
        ...

    async def shell(self, command: str, *, wall_seconds: float | None = None) -> Outcome:
        """Run a shell command."""
        ...

    async def call_file_tool(self, function: str, **arguments: str | int) -> Outcome:
        """Call a function of `guest/files.py` and return its result."""
        ...

    async def read(self, path: str, *, max_bytes: int = 8 << 20) -> Outcome:
        """Read a file; the bytes are in `data`."""
        ...

    async def write(self, path: str, data: bytes) -> Outcome:
        """Write a file and create its parent folders."""
        ...

    async def start(self) -> None:
        """Start the session in advance; otherwise the first call starts it."""
        ...

    def close(self) -> Awaitable[Any] | None:
        """End all processes of the session; return an awaitable if that takes time, as on another machine."""
        ...
