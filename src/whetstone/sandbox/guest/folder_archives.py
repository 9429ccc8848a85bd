"""Tar archives of folders: packing that follows no links, and unpacking. The host and the guest use both.

Note:
    Another process may change a folder while it is packed, such as a file into a link to a file of another user. Each
    entry is therefore opened relative to its open folder, and never through a link.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
from typing import IO

from whetstone.sandbox.guest import cleanup


def pack_folder(folder: str, target: IO[bytes]) -> None:
    """Write the files, folders and links of a folder as a tar archive whose entries belong to user 0.

    Devices, pipes, sockets and unreadable files are left out. A missing folder is empty.
    """
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for parent, folders, names, handle in os.fwalk(folder) if os.path.isdir(folder) else ():
            folders.sort()
            place = os.path.relpath(parent, folder)
            for name in sorted((*folders, *names)):
                _pack_entry(archive, os.path.normpath(os.path.join(place, name)), name, handle)


def _pack_entry(archive: tarfile.TarFile, path: str, name: str, handle: int) -> None:
    entry, file = tarfile.TarInfo(path), -1
    try:
        state = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISDIR(state.st_mode):
            entry.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(state.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=handle)
        elif stat.S_ISREG(state.st_mode):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            state = os.fstat(file)
            entry.size = state.st_size
        else:
            return
    except OSError:  # it was deleted, or cannot be read
        return
    entry.mode, entry.mtime = stat.S_IMODE(state.st_mode), int(state.st_mtime)
    if file < 0:
        archive.addfile(entry)
        return
    with open(file, "rb") as content:
        archive.addfile(entry, content)


def unpack_folder(source: IO[bytes], folder: str) -> None:
    """Replace the contents of a folder by those of a tar archive.

    Files get the modes of the archive without permissions of other users. Parent folders are created.

    Raises:
        OSError: An entry cannot be written.
        tarfile.TarError: The source is not an archive.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(folder) and not os.path.islink(folder):
            cleanup.clear_folder(folder)
        else:
            os.unlink(folder)
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for entry in archive:
            place = os.path.join(folder, entry.name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if entry.isdir():
                os.makedirs(place, exist_ok=True)
            elif entry.issym():
                os.symlink(entry.linkname, place)
            elif (content := archive.extractfile(entry)) is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                # not `chmod` later: without a separate user, a session cannot change modes
                with open(os.open(place, flags, entry.mode & 0o700 | 0o600), "wb") as file:
                    shutil.copyfileobj(content, file)
                os.utime(place, (entry.mtime, entry.mtime))
