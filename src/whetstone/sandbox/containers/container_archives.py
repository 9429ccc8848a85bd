"""Archives of folders in containers: packing, reading and copying them with the runtime's command `cp`."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tempfile
from pathlib import PurePosixPath
from typing import IO

from whetstone.errors import InfrastructureError
from whetstone.sandbox.containers.container_runtime import FIRST_USER

_CHUNK = 1 << 16
_MAX_DOWNLOAD_BYTES, _MAX_FILE_BYTES = 256 << 20, 1 << 20


class FolderTooLargeError(Exception):
    """Error: a folder of untrusted code is larger than the limit of the container that it is copied into."""


def read_archive(command: list[str]) -> dict[str, bytes]:
    """Return the regular files in a tar archive that a command writes; links and other entries are left out."""
    contents: dict[str, bytes] = {}
    total = 0
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet) as copying:
        assert copying.stdout is not None
        try:
            with tarfile.open(fileobj=copying.stdout, mode="r|") as archive:
                for entry in archive:
                    total += entry.size
                    if total > _MAX_DOWNLOAD_BYTES:
                        break
                    reader = archive.extractfile(entry) if entry.isreg() and entry.size <= _MAX_FILE_BYTES else None
                    if reader is not None:
                        contents[str(PurePosixPath(entry.name))] = reader.read()
        except tarfile.TarError:
            pass  # the folder is gone, or the archive is cut
        finally:
            copying.kill()
    return contents


def copy_archive(reading: list[str], writing: list[str], *, max_bytes: int) -> None:
    """Copy the files and links of the tar archive that one command writes to the standard input of another one.

    Podman writes owners as users of this machine, and reads them as users of the container.

    Raises:
        FolderTooLargeError: Its files have more than `max_bytes`.
        InfrastructureError: A command fails.
    """
    with tempfile.TemporaryFile() as packed, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(reading, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as source:
            assert source.stdout is not None
            count, problem = 0, ""
            try:
                count = _rewrite_archive(source.stdout, packed, max_bytes)
                while source.stdout.read(_CHUNK):  # the padding
                    pass
            except tarfile.ReadError as error:
                problem = "" if str(error) == "empty file" else str(error)
            finally:
                source.stdout.close()  # ends a command that still writes
        errors.seek(0)
        text = errors.read().decode(errors="replace")
        is_missing = not count and re.search(r"no such file|not find|not be found", text, re.IGNORECASE)
        if (source.returncode or problem) and not is_missing:
            raise InfrastructureError(f"{reading[0]} cp: {find_last_line(text or problem)}")
        if count:  # an archive without entries would be refused
            packed.seek(0)
            written = subprocess.run(writing, stdin=packed, capture_output=True, text=True, check=False)
            if written.returncode:
                raise InfrastructureError(f"{writing[0]} cp: {find_last_line(written.stderr)}")


def _rewrite_archive(source: IO[bytes], target: IO[bytes], max_bytes: int) -> int:
    """Copy a tar archive without devices and pipes, with owners of the container; return its number of entries.

    Raises:
        FolderTooLargeError: Its files have more than `max_bytes`.
    """
    count = total = 0
    with tarfile.open(fileobj=source, mode="r|") as archive, tarfile.open(fileobj=target, mode="w") as packed:
        for entry in archive:
            total += entry.size
            if total > max_bytes:
                raise FolderTooLargeError(f"the workspace has more than {max_bytes >> 20} MiB")
            if entry.isreg() or entry.isdir() or entry.issym() or entry.islnk():
                entry.pax_headers, entry.uname, entry.gname = {}, "", ""
                entry.type = tarfile.REGTYPE if entry.isreg() else entry.type
                entry.uid, entry.gid = (
                    number - FIRST_USER if number >= FIRST_USER else number for number in (entry.uid, entry.gid)
                )
                packed.addfile(entry, archive.extractfile(entry) if entry.isreg() else None)
                count += 1
    return count


def pack_files(contents: dict[str, bytes]) -> bytes:
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


def find_last_line(text: str) -> str:
    """Return the last line of an error output."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
