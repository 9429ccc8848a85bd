"""Archives of folders in containers: reading, saving and loading them with the runtime's command `cp`."""

from __future__ import annotations

import re
import subprocess
import tarfile
import tempfile
from pathlib import PurePosixPath
from typing import IO

from whetstone.errors import InfrastructureError
from whetstone.sandbox.archive_transfer import copy_archive, has_entries
from whetstone.sandbox.containers.container_runtime import FIRST_USER

_CHUNK = 1 << 16
_MAX_DOWNLOAD_BYTES, _MAX_FILE_BYTES = 256 << 20, 1 << 20


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


def save_archive(reading: list[str], archive: IO[bytes], *, max_bytes: int) -> None:
    """Write the files and links of the tar archive that a command writes to a file.

    Podman writes owners as users of this machine, and reads them as users of the container.

    Raises:
        FolderTooLargeError: Its files have more than `max_bytes`.
        InfrastructureError: The command fails.
    """
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(reading, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as source:
            assert source.stdout is not None
            count, problem = 0, ""
            try:
                count = copy_archive(source.stdout, archive, max_bytes=max_bytes, first_user=FIRST_USER)
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


def load_archive(archive: IO[bytes], writing: list[str]) -> None:
    """Pass a tar archive to a command, unless it has no entries, which the runtimes refuse.

    Raises:
        InfrastructureError: The command fails.
    """
    if has_entries(archive):
        written = subprocess.run(writing, stdin=archive, capture_output=True, text=True, check=False)
        if written.returncode:
            raise InfrastructureError(f"{writing[0]} cp: {find_last_line(written.stderr)}")


def find_last_line(text: str) -> str:
    """Return the last line of an error output."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
