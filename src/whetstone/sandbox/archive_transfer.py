"""Tar archives on the way between a sandbox, this machine and another sandbox.

Note:
    An archive of a sandbox is untrusted. `copy_archive` writes it again with only the entries that a workspace has:
    files, folders and links whose paths are relative, within the limit of size.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from whetstone.errors import InfrastructureError
from whetstone.sandbox.guest.folder_archives import pack_folder
from whetstone.sandbox.isolation import exceeds_limits
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import Ending, Outcome

_PIECE_BYTES = 4 << 20
_ENTRY_BYTES = 4096
"""Maximum bytes of the headers of one entry that are expected in an archive."""


class FolderTooLargeError(Exception):
    """Error: the files of a folder of untrusted code are larger than the limit."""


class ReceivesArchives(Protocol):
    """Session into which archives can be copied."""

    async def upload_archive(self, archive: IO[bytes], folder: str) -> Outcome:
        """Replace the contents of a folder by those of an archive."""
        ...


def copy_archive(source: IO[bytes], target: IO[bytes], *, max_bytes: int, first_user: int | None = None) -> int:
    """Write the files, folders and links of a tar archive to another one; return their number.

    Args:
        source: Untrusted archive, read in order.
        target: Archive without devices, pipes and paths that leave the folder.
        max_bytes: Maximum size of all files.
        first_user: Number of this machine that is user 0 of the sandbox; owners at or above it are mapped.

    Raises:
        FolderTooLargeError: The files have more than `max_bytes`.
        tarfile.TarError, ValueError, ArithmeticError: The source is not a valid archive.
    """
    count = total = 0
    with tarfile.open(fileobj=source, mode="r|") as archive, tarfile.open(fileobj=target, mode="w") as packed:
        for entry in archive:
            total += entry.size
            if total > max_bytes:
                raise FolderTooLargeError(f"the workspace has more than {max_bytes >> 20} MiB")
            path = PurePosixPath(entry.name)
            if path.is_absolute() or ".." in path.parts:
                continue
            if entry.isreg() or entry.isdir() or entry.issym() or entry.islnk():
                entry.pax_headers, entry.uname, entry.gname = {}, "", ""
                entry.type = tarfile.REGTYPE if entry.isreg() else entry.type
                if first_user is not None:
                    entry.uid, entry.gid = (
                        number - first_user if number >= first_user else number for number in (entry.uid, entry.gid)
                    )
                packed.addfile(entry, archive.extractfile(entry) if entry.isreg() else None)
                count += 1
    return count


def max_archive_bytes(limits: Limits) -> int:
    """Return the maximum size of an archive of a folder within the limits."""
    return limits.kernel_limits.folder + (limits.files + 64) * _ENTRY_BYTES


def copy_untrusted(packed: IO[bytes], archive: IO[bytes], limits: Limits) -> Outcome:
    """Copy an archive whose content is that of untrusted code; an invalid one is an outcome of the code."""
    try:
        copy_archive(packed, archive, max_bytes=limits.kernel_limits.folder)
    except FolderTooLargeError as error:
        return Outcome(Ending.DISK, error=str(error))
    except (tarfile.TarError, ValueError, ArithmeticError, RecursionError) as error:
        return Outcome(Ending.ERROR, error=f"the workspace cannot be copied: {error}")
    return Outcome(Ending.OK)


def pack_workspace(folder: str, archive: IO[bytes], limits: Limits) -> Outcome:
    """Write a folder of this machine, in which untrusted code has run, as a tar archive."""
    if exceeds_limits(folder, limits):
        return Outcome(Ending.DISK, error=f"the workspace has more than {limits.folder_mb} MiB or too many files")
    pack_folder(folder, archive)
    return Outcome(Ending.OK)


def pack_files(contents: Mapping[str, bytes]) -> bytes:
    """Return a tar archive with files and their folders."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        folders = {str(above) for path in contents for above in PurePosixPath(path).parents} - {".", "/"}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, data in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def has_entries(archive: IO[bytes]) -> bool:
    """Return whether the tar archive in a file has entries, and go back to its start."""
    archive.seek(0)
    first = os.pread(archive.fileno(), tarfile.BLOCKSIZE, 0)  # a command may read the file, so nothing is buffered
    return bool(first.strip(b"\0"))


async def upload_host_folder(session: ReceivesArchives, folder: Path, target: str) -> None:
    """Copy the contents of a trusted folder of this machine into a folder of a session, which replaces any there.

    Raises:
        InfrastructureError: It cannot be copied.
    """
    with tempfile.TemporaryFile() as archive:
        await asyncio.to_thread(lambda: pack_folder(str(folder.resolve()), archive))
        archive.seek(0)
        outcome = await session.upload_archive(archive, target)
    if outcome.ending is not Ending.OK:
        raise InfrastructureError(f"{folder} cannot be copied into the sandbox: {outcome.error}")


class ArchiveTools:
    """Tools of a guest that sends or receives an archive in pieces; see `CodeTools`.

    Args:
        archive: File that receives or provides the pieces.
        limits: Limits of the session.
    """

    parameter_names: Mapping[str, Sequence[str]] = {"send": ("piece",), "receive": ()}

    def __init__(self, archive: IO[bytes], limits: Limits) -> None:
        self._archive, self._num_bytes = archive, 0
        self._max_bytes = max_archive_bytes(limits)

    async def call_tool(self, name: Any, arguments: Any) -> Mapping[str, Any]:
        """Store a piece that the guest sends, or return the next one."""
        if name == "receive":
            piece = await asyncio.to_thread(self._archive.read, _PIECE_BYTES)
            return {"text": base64.b64encode(piece).decode()}
        try:
            piece = base64.b64decode(arguments["piece"], validate=True)
        except (KeyError, TypeError, ValueError):
            return {"error": "a piece is invalid"}
        self._num_bytes += len(piece)
        if self._num_bytes > self._max_bytes:
            return {"error": "the archive is too large"}
        await asyncio.to_thread(self._archive.write, piece)
        return {"text": ""}
