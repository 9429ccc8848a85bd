"""Removal of everything that untrusted code leaves in a folder, of any depth and with any modes.

Note:
    A path can be longer than the system's limit or the recursion limit. Therefore nested folders are moved up into the
    top folder until there are none. A name can become a link between a check and its use, so that folders are accessed
    by open file descriptors and never twice by name.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os

_FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = "whetstone-removing-"


def clear_folder(folder: str) -> None:
    """Remove all entries of a folder, but not the folder itself.

    Raises:
        OSError: If an entry cannot be removed.
    """
    top = os.open(folder, _FOLDER_FLAGS)
    try:
        numbers = itertools.count()
        while inner := _unlink_files(top):
            for name in inner:
                _flatten(top, name, numbers)
    finally:
        os.close(top)


def reset_folder(folder: str, mode: int = 0o700) -> None:
    """Reset the mode and the times of an empty folder, so that it equals a new one.

    Raises:
        OSError: If the folder cannot be changed.
    """
    os.chmod(folder, mode)
    os.utime(folder, (0, 0))


def _unlink_files(folder: int) -> list[str]:
    """Unlink all entries of an open folder except subfolders.

    Return the names of the subfolders.
    """
    inner = []
    with os.scandir(folder) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in listed:
        if is_folder:
            inner.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return inner


def _flatten(top: int, name: str, numbers: itertools.count[int]) -> None:
    """Move the subfolders of a folder up into the top folder, and remove the folder with its other entries."""
    folder = _open_folder(top, name)
    try:
        for inner in _unlink_files(folder):
            os.close(_open_folder(folder, inner))  # a folder without write permission cannot be moved
            while not _try_rename(folder, inner, top, f"{_NAME}{next(numbers)}"):
                pass
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _try_rename(folder: int, name: str, top: int, other: str) -> bool:
    """Move a folder into the top folder under a new name; return False if the name exists."""
    try:
        os.rename(name, other, src_dir_fd=folder, dst_dir_fd=top)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _open_folder(parent: int, name: str) -> int:
    """Return a descriptor of a subfolder, even if its owner removed all permissions."""
    handle = os.open(name, os.O_PATH | _FOLDER_FLAGS, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
