"""Interfaces of the sandbox: a session, the outcome of a call and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, Protocol

from whetstone.sandbox.limits import Limits


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

    limits: Limits
    """Limits of each call."""
    files: dict[str, bytes]
    """Contents by path, written when the session starts."""

    @property
    def working_folder(self) -> str:
        """Folder in which commands start; known once the session has started."""
        ...

    @property
    def scratch_folder(self) -> str:
        """Writable folder outside of the working folder; "" is `/`. The working folder itself if there is no other."""
        ...

    async def python(self, code: str, *, wall_seconds: float | None = None, tools: CodeTools | None = None) -> Outcome:
        """Run Python code like a notebook cell; it can call `tools`.

        Raises:
            InfrastructureError: The sandbox itself has failed; nothing is known about the code.
        """
        ...

    async def shell(
        self,
        command: str,
        *,
        wall_seconds: float | None = None,
        variables: Mapping[str, str] | None = None,
        user: str = "",
    ) -> Outcome:
        """Run a shell command.

        Args:
            command: Command, of one or more lines.
            wall_seconds: Maximum duration; that of the limits by default.
            variables: Environment variables of the command.
            user: Name or id of the user, if the sandbox has several.
        """
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

    async def download_archive(self, folder: str, archive: IO[bytes]) -> Outcome:
        """Write the files, folders and links of a folder to a file of this machine as a tar archive.

        Devices and pipes are left out. A missing folder is empty. If the files exceed the limit of the folder, the
        outcome is `Ending.DISK`.
        """
        ...

    async def upload_archive(self, archive: IO[bytes], folder: str) -> Outcome:
        """Replace the contents of a folder by those of a tar archive, which is read from its start."""
        ...

    async def start(self) -> None:
        """Start the session in advance; otherwise the first call starts it."""
        ...

    def close(self) -> Awaitable[Any] | None:
        """End all processes of the session; return an awaitable if that takes time, as on another machine."""
        ...


class SessionPool(Protocol):
    """Factory of sessions with the same options."""

    def session(self, *, persistent: bool = True, seed: int = 0, limits: Limits | None = None) -> SandboxSession:
        """Create a session; its first call starts it."""
        ...

    def grader_factory(self, image: str) -> Callable[[Limits], SandboxSession]:
        """Return a function that creates sessions without a network, in which no code has run, to grade other ones.

        Args:
            image: Image of the sessions; "": that of the others.

        Raises:
            OptionError: The sessions have no image.
            SandboxError: The image is missing, or sessions without a network are not possible.
        """
        ...


def export_variables(variables: Mapping[str, str] | None) -> str:
    """Return the start of a shell command that sets environment variables."""
    return "".join(f"export {name}={shlex.quote(value)}; " for name, value in (variables or {}).items())
