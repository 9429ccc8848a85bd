"""Where control groups are writable, one limit for all that a session's processes use together.

The kernel's other limits hold for each process by itself: thirty processes may use thirty times the memory of one. Both
layouts are known, one tree for all controllers (v2) and one tree for each (v1).

Easy to get wrong: a group can be removed only when nobody is in it any more, which is a moment after its processes were
killed; and what a killed host has left behind is removed by nobody. Both are made up for when the next one is made.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_NAMES = "whetstone"


@functools.cache
def parents() -> tuple[Path, ...]:
    """Where groups are made; empty where none can be."""
    for candidate in (_joint(), _separate()):
        if candidate and all(_writable(path) for path in candidate):
            return candidate
    return ()


class ControlGroup:
    """What the processes of one session may use together.

    Args:
        number: Unique in this process.
        memory: Bytes, files in memory among them.
        processes: At once.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, number: int, *, memory: int, processes: int) -> None:
        self._folders = [parent / f"{_NAMES}-{os.getpid()}-{number}" for parent in parents()]
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
        self._set(memory, "memory.max", "memory.limit_in_bytes")
        with contextlib.suppress(OSError):
            self._set(0, "memory.swap.max")
        self._set(processes, "pids.max")

    def admit(self, process: int) -> None:
        """Take in a process; those it starts from then on are in it, too."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(process))

    @property
    def out_of_memory(self) -> int:
        """How many processes the kernel has killed in it for want of memory."""
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    for line in (folder / name).read_text().splitlines():
                        if line.startswith("oom_kill "):
                            return int(line.split()[1])
        return 0

    def remove(self) -> bool:
        """Whether it is gone; False while somebody is in it."""
        for folder in self._folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def _set(self, value: int, *names: str) -> None:
        for folder in self._folders:
            for name in names:
                if (folder / name).exists():
                    (folder / name).write_text(str(value))


def remove_leftovers() -> None:
    """Groups of processes that are gone, which could not remove them themselves."""
    for parent in parents():
        for folder in parent.glob(f"{_NAMES}-*-*"):
            owner = folder.name.split("-")[1]
            if not Path(f"/proc/{owner}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _joint() -> tuple[Path, ...]:
    """v2: this process's group, where it hands on memory and processes to groups below."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = ROOT / line[3:].lstrip("/")
                handed_on = (own / "cgroup.subtree_control").read_text().split()
                if not {"memory", "pids"} <= set(handed_on):
                    (own / "cgroup.subtree_control").write_text("+memory +pids")
                return (own,)
    return ()


def _separate() -> tuple[Path, ...]:
    """v1: a tree for memory and one for processes."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                found[controller] = ROOT / controller / path.lstrip("/")
    return (found["memory"], found["pids"]) if {"memory", "pids"} <= found.keys() else ()


def _writable(parent: Path) -> bool:
    probe = parent / f"{_NAMES}-{os.getpid()}-probe"
    try:
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError:
        return False
    return True
