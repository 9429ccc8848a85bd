"""Control groups (cgroups v1 and v2): limits on memory and number of all processes of a session together.

The kernel's other limits apply to single processes: thirty processes may use thirty times the memory of one.

Note:
    A group can be removed only when it is empty, which is a moment after its processes were killed. A killed host
    removes nothing. Both kinds of leftovers are removed when the next group is created.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_NAMES = "whetstone"


@functools.cache
def list_parent_groups() -> tuple[Path, ...]:
    """Return the folders in which this process can create control groups.

    The result is empty if there are none.
    """
    for candidate in (_unified_folders(), _v1_folders()):
        if candidate and all(_is_writable(path) for path in candidate):
            return candidate
    return ()


class ControlGroup:
    """Control group of one session, with limits on all its processes together.

    Args:
        number: Number of the group, unique in this process.
        memory: Maximum memory in bytes, including files in memory.
        processes: Maximum number of processes at a time.

    Raises:
        OSError: If the group cannot be created.
    """

    def __init__(self, number: int, *, memory: int, processes: int) -> None:
        self._folders = [parent / f"{_NAMES}-{os.getpid()}-{number}" for parent in list_parent_groups()]
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
        self._set(memory, "memory.max", "memory.limit_in_bytes")
        with contextlib.suppress(OSError):
            self._set(0, "memory.swap.max")
        self._set(processes, "pids.max")

    def add_process(self, process: int) -> None:
        """Move a process into the group.

        Processes that it starts from then on belong to the group, too.
        """
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(process))

    @property
    def out_of_memory(self) -> int:
        """Number of processes of the group that the kernel killed for lack of memory."""
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    for line in (folder / name).read_text().splitlines():
                        if line.startswith("oom_kill "):
                            return int(line.split()[1])
        return 0

    def remove(self) -> bool:
        """Remove the group; return False if it still has processes."""
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
    """Remove control groups of host processes that ended without removing them."""
    for parent in list_parent_groups():
        for folder in parent.glob(f"{_NAMES}-*-*"):
            owner = folder.name.split("-")[1]
            if not Path(f"/proc/{owner}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _unified_folders() -> tuple[Path, ...]:
    """Return the folder for groups of cgroups v2: that of this process if it can delegate memory and processes.

    Else none.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = ROOT / line[3:].lstrip("/")
                delegated = (own / "cgroup.subtree_control").read_text().split()
                if not {"memory", "pids"} <= set(delegated):
                    (own / "cgroup.subtree_control").write_text("+memory +pids")
                return (own,)
    return ()


def _v1_folders() -> tuple[Path, ...]:
    """Return the folders for groups of cgroups v1: one for memory and one for processes.

    The result is empty if there are none.
    """
    folders = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                folders[controller] = ROOT / controller / path.lstrip("/")
    return (folders["memory"], folders["pids"]) if {"memory", "pids"} <= folders.keys() else ()


def _is_writable(parent: Path) -> bool:
    probe = parent / f"{_NAMES}-{os.getpid()}-probe"
    try:
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError:
        return False
    return True
