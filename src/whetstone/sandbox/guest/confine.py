"""Confinement of a process before it runs untrusted code: user, limits, files, network and system calls.

Note:
    The order matters. Mounts need capabilities that a dropped user no longer has, and a system call filter that is
    loaded first forbids the other steps.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.sandbox.guest import syscalls

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@contextlib.contextmanager
def _found_by_the_loader() -> Iterator[None]:
    """Make `find_library` fall back to library names.

    Small images lack the programs it calls (ldconfig, gcc).
    """
    find = ctypes.util.find_library
    ctypes.util.find_library = lambda name: find(name) or {"seccomp": "libseccomp.so.2"}.get(name)
    try:
        yield
    finally:
        ctypes.util.find_library = find


try:
    with _found_by_the_loader():
        import pyseccomp
except (ImportError, RuntimeError, OSError):  # an image without libseccomp; the container runtime has its own filter
    pyseccomp = None

ALLOWED = (
    # files that are open, and opening them
    "read", "write", "open", "openat", "openat2", "creat", "close", "close_range", "lseek", "_llseek", "pread64",
    "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2", "dup", "dup2", "dup3", "pipe", "pipe2",
    "fcntl", "fcntl64", "flock", "fsync", "fdatasync", "sync_file_range", "fallocate", "fadvise64", "readahead",
    "sendfile", "sendfile64", "splice", "tee", "vmsplice", "copy_file_range", "ioctl", "truncate", "ftruncate",
    # metadata
    "stat", "fstat", "lstat", "newfstatat", "fstatat64", "statx", "statfs", "fstatfs", "access", "faccessat",
    "faccessat2", "readlink", "readlinkat", "getdents", "getdents64", "getcwd", "chdir", "fchdir", "umask",
    "getxattr", "lgetxattr", "fgetxattr", "listxattr", "llistxattr", "flistxattr", "cachestat",
    # names and attributes
    "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "link", "linkat", "unlink", "unlinkat", "symlink",
    "symlinkat", "mknod", "mknodat", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown",
    "fchownat", "utime", "utimes", "utimensat", "futimesat",
    # waiting
    "poll", "ppoll", "select", "pselect6", "_newselect", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait",
    "epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2", "signalfd", "signalfd4", "timerfd_create",
    "timerfd_settime", "timerfd_gettime", "pause", "nanosleep", "clock_nanosleep",
    # memory
    "mmap", "mmap2", "munmap", "mremap", "mprotect", "madvise", "msync", "mincore", "brk", "mlock", "mlock2", "munlock",
    "mlockall", "munlockall", "pkey_alloc", "pkey_free", "pkey_mprotect", "membarrier", "get_mempolicy",
    # processes and threads
    "clone", "clone3", "fork", "vfork", "execve", "execveat", "exit", "exit_group", "wait4", "waitid", "getpid",
    "getppid", "gettid", "getpgid", "getpgrp", "getsid", "setpgid", "setsid", "set_tid_address", "set_robust_list",
    "get_robust_list", "futex", "futex_waitv", "futex_wait", "futex_wake", "futex_requeue", "rseq", "sched_yield",
    "arch_prctl", "prctl", "set_thread_area", "get_thread_area", "set_tls", "restart_syscall", "pidfd_open", "getcpu",
    "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setparam", "sched_getscheduler",
    "sched_setscheduler", "sched_getattr", "sched_setattr", "sched_get_priority_max", "sched_get_priority_min",
    "sched_rr_get_interval", "getpriority", "setpriority", "ioprio_get", "ioprio_set",
    # signals
    "kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending",
    "rt_sigtimedwait", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "rt_sigsuspend", "sigaltstack", "sigreturn", "alarm",
    "getitimer", "setitimer", "timer_create", "timer_settime", "timer_gettime", "timer_getoverrun", "timer_delete",
    # who, when, how much
    "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "setuid", "setgid", "setreuid",
    "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "capget", "capset", "uname", "sysinfo", "times",
    "time", "gettimeofday", "clock_gettime", "clock_getres", "getrusage", "getrlimit", "ugetrlimit", "setrlimit",
    "prlimit64", "getrandom",
    # dropping further privileges
    "seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
    # communication within a program: both ends belong to it, and nothing else can be reached
    "socketpair", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "shutdown", "getsockname",
    "getpeername", "setsockopt", "getsockopt",
)  # fmt: skip
"""Allowed system calls. Every other call, including newer ones, fails as if the kernel did not have it."""
_MAY_NOT = (
    "socket", "bind", "listen", "accept", "accept4", "connect", "ptrace", "process_vm_readv", "process_vm_writev",
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "memfd_create", "shmget", "semget", "msgget",
    "mq_open", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "bpf", "keyctl",
    "add_key", "request_key", "sync", "syncfs", "io_setup", "io_uring_setup", "personality", "sethostname",
    "inotify_init", "inotify_init1",  # the limit of 128 per user includes processes outside
)  # fmt: skip
"""Other system calls whose refusal programs handle: they fail with "not permitted" instead of "not implemented"."""
_SOCKETS = ("socket", "bind", "listen", "accept", "accept4", "connect")
_OF_ONESELF = ("prlimit64", "sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr")
"""System calls whose first argument is a process; 0 is the calling process."""
_OTHERS_FILES = ("chown", "fchown", "lchown", "fchownat")
_DONE_WITHOUT_EFFECT = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat",
)  # fmt: skip
FILTERS = pyseccomp is not None
"""Whether system calls can be filtered on this machine."""
_FILE_SYSTEM_CONTROLS = (0x66, 0x58, 0x76, 0x94)
"""Second byte of `ioctl` requests that change file attributes other than mode and time (flags, versions, projects,
seals). They need only an open file, so that read access would permit a change."""
_SET_LEASE, _NOTIFY = 1024, 1026
_CORE_SCHEDULING = 62
_MOST_WAITING_SIGNALS = 1024
_NEW_NAMESPACES = (0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the processes of a session, in the kernel's units."""

    memory: int
    """Maximum address space of a process in bytes, in addition to its initial size; 0: no limit."""
    processes: int
    """Maximum number of processes and threads of the session's user at a time."""
    open_files: int
    """Maximum number of open files per process."""
    file: int
    """Maximum size of one file in bytes."""
    folder: int
    """Maximum total size of all files in bytes."""
    files: int
    """Maximum number of files and folders."""


def system_call_filters(*, own_files: bool, loopback: bool = False) -> list[Any]:
    """Return the system call filters for untrusted code.

    All are loaded, and a call must pass each of them.

    Args:
        own_files: Whether all files that the process's user owns belong to the session. Otherwise attributes of files
            cannot be changed: Landlock does not protect modes and times, so that a session without a separate user or
            root would change those of the machine. Changes of modes and times are then ignored silently, since copying
            a file sets both.
        loopback: Whether sockets are allowed; the network then contains only the loopback interface.

    Raises:
        OSError: If libseccomp is not installed.
    """
    if pyseccomp is None:
        raise OSError("libseccomp is not installed")
    allowed = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.ENOSYS))
    for name in ALLOWED:
        _add(allowed, pyseccomp.ALLOW, name)
    bounded = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refused, word = pyseccomp.ERRNO(errno.EPERM), 0xFFFFFFFF
    for name in _MAY_NOT:
        if not (loopback and name in _SOCKETS):
            _add(bounded, refused, name)
    if loopback:
        for name in _SOCKETS[1:]:
            _add(allowed, pyseccomp.ALLOW, name)
        for family in (socket.AF_INET, socket.AF_INET6):  # a path may lead outside, an address cannot
            _add(allowed, pyseccomp.ALLOW, "socket", pyseccomp.Arg(0, pyseccomp.EQ, family))
    for name in _OF_ONESELF:
        _add(bounded, refused, name, pyseccomp.Arg(0, pyseccomp.NE, 0))
    for name, one_process in (("setpriority", os.PRIO_PROCESS), ("ioprio_set", 1)):
        _add(bounded, refused, name, pyseccomp.Arg(0, pyseccomp.NE, one_process))
        _add(bounded, refused, name, pyseccomp.Arg(1, pyseccomp.NE, 0))
    for flag in _NEW_NAMESPACES:
        _add(bounded, refused, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    # a filter cannot read its flags; the C library then uses `clone`
    _add(bounded, pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for pushes_characters in (0x5412, 0x541C):  # into a terminal's input
        _add(bounded, refused, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, word, pushes_characters))
    for kind in _FILE_SYSTEM_CONTROLS:
        _add(bounded, pyseccomp.ERRNO(errno.ENOTTY), "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFF00, kind << 8))
    for holds_up_others in (_SET_LEASE, _NOTIFY):
        for name in ("fcntl", "fcntl64"):
            _add(bounded, refused, name, pyseccomp.Arg(1, pyseccomp.MASKED_EQ, word, holds_up_others))
    _add(bounded, refused, "prctl", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, word, _CORE_SCHEDULING))
    # a datagram pair can send to any path or name; stream and seqpacket pairs only to each other
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        _add(bounded, refused, "socketpair", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xF, kind))
    _add(bounded, refused, "socketpair", pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX))
    if not own_files:
        for name in _OTHERS_FILES:
            _add(bounded, refused, name)
        for name in _DONE_WITHOUT_EFFECT:
            _add(bounded, pyseccomp.ERRNO(0), name)
    return [allowed, bounded]


def _add(calls: Any, action: Any, name: str, *arguments: Any) -> None:
    with contextlib.suppress(ValueError, OSError):  # this architecture or library lacks the call
        calls.add_rule(action, name, *arguments)


def set_resource_limits(bounds: Bounds) -> None:
    """Set the kernel's resource limits of this process, which its children inherit."""
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, bounds.file),
        (resource.RLIMIT_NOFILE, bounds.open_files),
        (resource.RLIMIT_NPROC, bounds.processes),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _MOST_WAITING_SIGNALS),  # counts all processes of the user, also outside
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_AS, _address_space() + bounds.memory if bounds.memory else resource.RLIM_INFINITY),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY or most == resource.RLIM_INFINITY else min(most, hard)
        if most != resource.RLIM_INFINITY:
            resource.setrlimit(what, (most, most))


def drop_privileges(
    bounds: Bounds,
    allowed: Sequence[tuple[str, int | None]],
    *,
    user: int | None,
    calls: Sequence[Any],
    landlock: bool,
) -> None:
    """Drop all privileges of this process that untrusted code must not have.

    Args:
        bounds: Resource limits.
        allowed: Paths that Landlock permits; see `syscalls.restrict_paths`.
        user: User id to change to; None keeps the user.
        calls: System call filters; see `system_call_filters`.
        landlock: Whether to restrict paths with Landlock.

    Raises:
        OSError: If a step fails.
    """
    os.umask(0o077)
    set_resource_limits(bounds)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    syscalls.set_no_new_privs()
    if landlock:
        syscalls.restrict_paths(allowed)
    syscalls.drop_capabilities()
    for each in calls:
        each.load()


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
