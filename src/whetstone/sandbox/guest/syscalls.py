"""Linux system calls that Python has no function for: namespaces, mounts, `prctl` and Landlock.

Note:
    A failed system call returns -1 and does nothing else, so that an unchecked confinement may be missing. Every
    function of this module raises instead.

The Python binding of Landlock supports only rules for files. Rules for the network, abstract sockets and signals
(kernel 6.12) are required here, too, and the three calls are short.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC, NEW_USERS, NEW_PIDS = 0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000
READ_ONLY, NOSUID, NODEV, NOEXEC, RECURSIVE, PRIVATE = 1, 2, 4, 8, 0x4000, 1 << 18
_END_WITH_PARENT, _SET_DUMPABLE, _DROP_BOUNDING, _ADOPT_ORPHANS, _NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
READ = _EXECUTE | _READ_FILE | _READ_FOLDER
"""Landlock rights to read files, list folders and run programs."""
WRITE = _WRITE_FILE
"""Landlock right to write to existing files."""


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def enter_namespaces(flags: int) -> None:
    """Move this process into new namespaces (`unshare`).

    Args:
        flags: Combination of `NEW_MOUNTS`, `NEW_HOSTNAME`, `NEW_IPC`, `NEW_USERS` and `NEW_PIDS`.

    Raises:
        OSError: If the kernel refuses.
    """
    _checked(_libc.unshare(flags), "unshare")


def mount_file_system(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system on a folder (`mount`).

    Args:
        source: Source, such as `proc` or `none`.
        target: Folder.
        kind: Type of the file system, such as `tmpfs`.
        flags: Combination of mount flags, such as `READ_ONLY`.
        options: Options of the file system.

    Raises:
        OSError: If the kernel refuses.
    """
    encoded = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(_libc.mount(*encoded), f"mount {target}")


def set_dumpable(yes: bool) -> None:
    """Set whether other processes of the same user can inspect this process (`PR_SET_DUMPABLE`)."""
    _checked(_libc.prctl(_SET_DUMPABLE, int(yes), 0, 0, 0), "PR_SET_DUMPABLE")


def set_child_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent ends (`PR_SET_CHILD_SUBREAPER`)."""
    _checked(_libc.prctl(_ADOPT_ORPHANS, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def set_parent_death_signal() -> None:
    """Request that the kernel kills this process when the thread that started it ends (`PR_SET_PDEATHSIG`).

    The parent may have ended before the call; compare its process id afterwards.
    """
    _checked(_libc.prctl(_END_WITH_PARENT, 9, 0, 0, 0), "PR_SET_PDEATHSIG")


def set_no_new_privs() -> None:
    """Forbid that programs started from here gain privileges, such as by setuid bits (`PR_SET_NO_NEW_PRIVS`)."""
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def drop_capabilities() -> None:
    """Drop all capabilities of this process permanently."""
    for capability in range(64):
        if _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0) < 0:
            break  # there are no further capabilities
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def io_priority() -> int:
    """Return the I/O priority of this process as the kernel's number.

    The result is 0 on unknown architectures.
    """
    number = {"x86_64": 252, "aarch64": 31}.get(os.uname().machine)
    return int(_libc.syscall(number, 1, 0)) if number is not None else 0


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 if there is none.

    Version 4 adds the network, version 6 abstract sockets and signals.
    """
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def restrict_paths(allowed: Iterable[tuple[str, int | None]]) -> None:
    """Restrict this process to these paths and everything below them, with Landlock.

    If the version supports it, the network and signals to outside processes are blocked, too.

    Args:
        allowed: Paths with `READ`, `WRITE`, a combination, or None for all rights; missing paths are ignored.

    Raises:
        OSError: If the kernel has no Landlock.
    """
    version = landlock_version()
    # rights per version: 13 at first, then renaming across folders, truncating, device controls
    everything = (1 << {0: 13, 1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    rules = _Ruleset(everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    handle = _checked(
        _libc.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0)), "landlock"
    )
    try:
        for path, rights in allowed:
            try:
                folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                granted = everything if rights is None else rights
                if not os.path.isdir(path):  # rights over folder entries are invalid for a file
                    granted &= _EXECUTE | _WRITE_FILE | _READ_FILE | (1 << 14 & everything)
                beneath = _Beneath(granted, folder)
                _checked(
                    _libc.syscall(_ADD_RULE, handle, 1, ctypes.byref(beneath), ctypes.c_uint32(0)), f"landlock {path}"
                )
            finally:
                os.close(folder)
        _checked(_libc.syscall(_RESTRICT_SELF, handle, ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(handle)
