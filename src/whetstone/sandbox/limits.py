"""What foreign code may use."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from pydantic import ConfigDict

from whetstone.sandbox.guest.confine import Bounds

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one session; where they are exceeded, a call ends with the word for it, and nothing else happens."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    wall_seconds: float = 10.0
    """How long one call may run, waiting and sleeping included."""
    cpu_seconds: float = 10.0
    """How long each of its processes may compute in one call; whole seconds, rounded up."""
    memory_mb: int = 512
    """MiB each process may allocate; all of a session's together where control groups are writable."""
    processes: int = 32
    """Processes and threads at once."""
    open_files: int = 256
    """Of one process."""
    file_mb: int = 64
    """MiB of one file."""
    folder_mb: int = 128
    """MiB of all files of a session."""
    files: int = 4096
    """Files and folders of a session."""
    output_characters: int = 20_000
    """Of what a call prints; more keeps its head and tail."""
    output_bytes: int = 8 * MEBIBYTE
    """Printed by one call, after which it is ended."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) > 0:
                raise ValueError(f"{limit.name} must be above 0, got {getattr(self, limit.name)}")

    @property
    def bounds(self) -> Bounds:
        """The part the kernel enforces."""
        return Bounds(
            memory=self.memory_mb * MEBIBYTE,
            processes=self.processes + 2,  # the supervisor and the interpreter are there already
            open_files=self.open_files,
            file=self.file_mb * MEBIBYTE,
            folder=self.folder_mb * MEBIBYTE,
            files=self.files,
        )

    @property
    def together(self) -> int:
        """Bytes all processes of a session may use, and its files, which lie in memory, too.

        Files alone can never use it up, so that what is ended for want of it is always a process that grew.
        """
        return (self.memory_mb + 2 * self.folder_mb + self.folder_mb // 4) * MEBIBYTE
