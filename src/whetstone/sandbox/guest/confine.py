"""What a session gives up before it runs a line of foreign code: users, sizes, files, network, system calls, for good.

Easy to get wrong: the order. Mounts need rights that a dropped user has no more, and a filter of system calls that is
loaded first forbids what the rest needs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.sandbox.guest import kernel

try:
    import pyseccomp
except (ImportError, RuntimeError, OSError):  # an image without libseccomp; the runtime has a filter of its own
    pyseccomp = None

FORBIDDEN = (
    # looking into and steering other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise",
    # namespaces, mounts, roots
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at",
    # the kernel itself
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load",
    "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff", "acct", "syslog",
    "add_key", "request_key", "keyctl", "quotactl", "quotactl_fd", "lookup_dcookie", "iopl", "ioperm", "modify_ldt",
    "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "vhangup",
    "nfsservctl", "uselib", "_sysctl", "fanotify_init", "mbind", "migrate_pages", "move_pages", "set_mempolicy",
    "personality",
    # files nobody sees in the folder and nobody counts, and queues that outlive a process
    "memfd_secret", "mq_open", "shmget", "semget", "msgget",
    # the network; `socketpair` stays, for programs that talk to themselves
    "socket", "bind", "listen", "accept", "accept4", "connect",
)  # fmt: skip
FILTERS = pyseccomp is not None
"""Whether system calls can be filtered here."""
_NEW_NAMESPACES = (0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the processes of a session may use, in the kernel's units; 0 for `memory` leaves it open."""

    memory: int
    """Bytes of address space a process may have beyond what it starts with."""
    processes: int
    """Processes and threads at once, of the user the session belongs to."""
    open_files: int
    file: int
    """Bytes of one file."""
    folder: int
    """Bytes of all files."""
    files: int
    """Files and folders."""


def system_call_filter() -> Any:
    """What the kernel refuses with a plain error: what no honest program in a sandbox needs.

    Raises:
        OSError: The library for it is not there.
    """
    if pyseccomp is None:
        raise OSError("libseccomp is not installed")
    calls = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refused = pyseccomp.ERRNO(1)  # EPERM
    for name in FORBIDDEN:
        try:
            calls.add_rule(refused, name)
        except (ValueError, OSError):
            continue  # a call this architecture or library does not know
    for flag in _NEW_NAMESPACES:
        calls.add_rule(refused, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    calls.add_rule(pyseccomp.ERRNO(38), "clone3")  # its flags cannot be read here; the C library then uses `clone`
    # pushing characters into a terminal's input
    calls.add_rule(refused, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, 0x5412))
    return calls


def limit(bounds: Bounds) -> None:
    """The kernel's own limits on a process and its children."""
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, bounds.file),
        (resource.RLIMIT_NOFILE, bounds.open_files),
        (resource.RLIMIT_NPROC, bounds.processes),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_AS, _address_space() + bounds.memory if bounds.memory else resource.RLIM_INFINITY),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY or most == resource.RLIM_INFINITY else min(most, hard)
        if most != resource.RLIM_INFINITY:
            resource.setrlimit(what, (most, most))


def confine(
    bounds: Bounds,
    allowed: Sequence[tuple[str, int | None]],
    *,
    user: int | None,
    calls: Any,
    landlock: bool,
) -> None:
    """Give up everything there is to give up.

    Args:
        allowed: What Landlock leaves; see `kernel.landlock`.
        user: The user to become; None to stay.
    """
    os.umask(0o077)
    limit(bounds)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.gain_nothing()
    if landlock:
        kernel.landlock(allowed)
    kernel.drop_capabilities()
    if calls is not None:
        calls.load()


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
