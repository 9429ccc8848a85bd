"""Removing what foreign code leaves in a folder, however deep, whatever rights it was given, and without being led out.

Easy to get wrong: a way down that is longer than a path may be, or than one function may call itself. So nothing is
walked down: what lies in a folder of the folder is moved up into it, until there are no folders. And a name may become
a link to somewhere else between looking and acting, so that a folder is held open, never named twice.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os

_AS_A_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = "whetstone-removing-"


def empty(folder: str) -> None:
    """Remove all there is in a folder.

    Raises:
        OSError: Some of it cannot be removed.
    """
    top = os.open(folder, _AS_A_FOLDER)
    try:
        numbers = itertools.count()
        while inner := _without_plain(top):
            for name in inner:
                _lift(top, name, numbers)
    finally:
        os.close(top)


def as_new(folder: str, mode: int = 0o700) -> None:
    """Take from an empty folder what may be written on the folder itself: its mode and its times.

    Raises:
        OSError: It cannot be done.
    """
    os.chmod(folder, mode)
    os.utime(folder, (0, 0))


def _without_plain(folder: int) -> list[str]:
    """Unlink what is no folder; the names of the folders."""
    inner = []
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            inner.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return inner


def _lift(top: int, name: str, numbers: itertools.count[int]) -> None:
    """Move a folder's folders up to where it is, and remove it and the rest of what is in it."""
    folder = _opened(top, name)
    try:
        for inner in _without_plain(folder):
            os.close(_opened(folder, inner))  # one that may not be changed may not be moved, either
            while not _moved(folder, inner, top, f"{_NAME}{next(numbers)}"):
                pass
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _moved(folder: int, name: str, top: int, other: str) -> bool:
    """Whether it has the other name now; not where that is somebody's."""
    try:
        os.rename(name, other, src_dir_fd=folder, dst_dir_fd=top)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _opened(where: int, name: str) -> int:
    """A folder that can be read and changed, which its owner may have closed to itself."""
    place = os.open(name, os.O_PATH | _AS_A_FOLDER, dir_fd=where)
    try:
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)
