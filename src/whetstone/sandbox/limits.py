"""Resource limits of a sandbox session."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from pydantic import ConfigDict

from whetstone.sandbox.guest.confine import Bounds

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one sandbox session.

    A call that exceeds a limit ends with the corresponding `Ending`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    wall_seconds: float = 10.0
    """Maximum duration of one call in seconds, including waiting and sleeping, without tools that the code calls."""
    cpu_seconds: float = 10.0
    """Maximum processor time of each process in one call, in seconds, rounded up to whole seconds."""
    memory_mb: int = 512
    """Maximum memory per process in MiB; of the whole session if control groups are writable."""
    processes: int = 32
    """Maximum number of processes and threads at a time."""
    open_files: int = 256
    """Maximum number of open files per process."""
    file_mb: int = 64
    """Maximum size of a file in MiB."""
    folder_mb: int = 128
    """Maximum total size of the files of a session in MiB."""
    files: int = 4096
    """Maximum number of files and folders of a session."""
    output_characters: int = 20_000
    """Maximum characters of a call's output; longer output keeps its head and tail."""
    output_bytes: int = 8 * MEBIBYTE
    """Maximum bytes that one call may print before it is ended."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) > 0:
                raise ValueError(f"{limit.name} must be above 0, got {getattr(self, limit.name)}")

    @property
    def kernel_limits(self) -> Bounds:
        """Limits in the kernel's units, which the guest sets before it runs code."""
        return Bounds(
            memory=self.memory_mb * MEBIBYTE,
            processes=self.processes + 2,  # the supervisor and the interpreter count, too
            open_files=self.open_files,
            file=self.file_mb * MEBIBYTE,
            folder=self.folder_mb * MEBIBYTE,
            files=self.files,
        )

    @property
    def total_bytes(self) -> int:
        """Maximum memory in bytes of all processes and files of a session together, for its control group.

        Files are in memory, too. They cannot use up the total by themselves, so that a kill for lack of memory always
        hits a process that grew.
        """
        return (self.memory_mb + 2 * self.folder_mb + self.folder_mb // 4) * MEBIBYTE
