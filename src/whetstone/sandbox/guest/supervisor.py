"""Supervisor, first process of a jail: starts interpreters, kills leftover processes, and ends with its connection.

As first process of its PID namespace it cannot be killed from inside. When it ends, the kernel ends all others.

Note:
    A process can fork faster than others can be listed. Leftovers are therefore killed until none is found. After a few
    rounds all processes are killed, including the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from whetstone.sandbox.guest import cleanup, interpreter, syscalls, wire

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

NOT_STARTED = 1000
"""Number that the supervisor sends instead of an exit code if no process could be started."""
_ROUNDS, _PAUSE_SECONDS = 50, 0.001


def run_supervisor(host: socket.socket, folders: Sequence[str], processes: ProcessGroup) -> None:
    """Handle requests of the host until it closes the connection.

    Then kill all processes of the jail.

    The fork server calls this function in the session's first process.

    Args:
        host: Socket to the host.
        folders: Writable folders; the first is the working directory.
        processes: Processes of the jail.
    """
    with contextlib.suppress(OSError):  # the host may close the connection at any time
        _handle_requests(host, folders, processes)
    processes.kill_all()


def _handle_requests(host: socket.socket, folders: Sequence[str], processes: ProcessGroup) -> None:
    syscalls.set_dumpable(False)  # its children may not inspect it
    for folder in folders:  # so that a used jail equals a new one
        cleanup.reset_folder(folder)
    at_first = _read_condition(folders)
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    wire.send_packet(host, {"hello": os.getpid()})
    worker: int | None = None
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(awake, select.POLLIN)
    while True:
        ready = {file for file, _ in poll.poll()}
        if awake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(awake, 4096)
        for child, status in _reap_ended():
            if child == worker:
                worker = None
                wire.send_packet(host, {"died": os.waitstatus_to_exitcode(status)})
        if host.fileno() not in ready:
            continue
        message, files = wire.receive_packet(host)
        if message is None:
            return
        if message["do"] == "start":
            worker = _start(host, (awake, wake), files, folders[0], message, is_scoped=processes.is_scoped)
        elif message["do"] == "sweep":
            swept, survived = processes.kill_others(worker) if worker is not None else (0, False)
            worker = worker if survived else None
            wire.send_packet(host, {"swept": swept, "survived": survived})
        elif message["do"] == "end":
            processes.kill_all()
            worker = None
            clean = not message["empty"] or (_reset_folders(folders) and _read_condition(folders) == at_first)
            wire.send_packet(host, {"ended": message["number"], "clean": clean})


def _start(
    host: socket.socket,
    own: tuple[int, int],
    files: list[int],
    folder: str,
    message: dict[str, Any],
    *,
    is_scoped: bool,
) -> int | None:
    """Start an interpreter; return its process id, or None if the process limit is reached."""
    channel, output = files
    try:
        child = os.fork()
    except OSError:
        child = -1
        wire.send_packet(host, {"died": NOT_STARTED})
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            host.close()
            for file in own:
                os.close(file)
            os.setsid()  # signals to a process group or session reach only its own
            syscalls.set_dumpable(True)
            if is_scoped:
                syscalls.restrict_paths([("/", None)])  # within existing rules; signals no longer reach the supervisor
            interpreter.run_interpreter(socket.socket(fileno=channel), output, folder, message)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(channel)
    os.close(output)
    return child if child > 0 else None


class ProcessGroup:
    """All processes of a jail except the supervisor.

    It must be created before the supervisor drops the privileges that listing processes needs.

    Args:
        has_pid_namespace: Whether the jail has its own PID namespace, so that all visible processes belong to it.
        is_scoped: Whether signals reach only processes of the jail.
    """

    def __init__(self, *, has_pid_namespace: bool, is_scoped: bool) -> None:
        self.has_pid_namespace, self.is_scoped = has_pid_namespace, is_scoped
        syscalls.set_child_subreaper()
        self._children = -1 if has_pid_namespace else os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)

    def kill_others(self, survivor: int) -> tuple[int, bool]:
        """Kill all processes except one, until no other is found.

        After 50 rounds kill that one, too.

        Args:
            survivor: Process id that is spared.

        Returns:
            (number of killed processes, whether the survivor still runs).
        """
        killed: set[int] = set()
        for _ in range(_ROUNDS):
            others = [pid for pid in self._others() if pid != survivor]
            if not others:
                return len(killed), True
            for pid in others:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            killed |= set(others)
            time.sleep(_PAUSE_SECONDS)
            _reap_others(len(others))
        self.kill_all()
        return len(killed), False

    def kill_all(self) -> None:
        """Kill all processes of the jail and wait until they have ended."""
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self.has_pid_namespace or self.is_scoped:
                    os.kill(-1, signal.SIGKILL)
            for pid in () if self.has_pid_namespace or self.is_scoped else self._others():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _others(self) -> Iterator[int]:
        if self.has_pid_namespace:
            me = os.getpid()
            yield from (
                int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != me and _is_running(name)
            )
            return
        for word in os.pread(self._children, 1 << 16, 0).split():
            yield from list_descendants(int(word))


def _is_running(pid: str) -> bool:
    """Return whether a process has a thread that has not ended.

    A thread may outlive the first one.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "ZX":
                    return True
    return False


def list_descendants(pid: int) -> Iterator[int]:
    """Yield a process id and those of its visible descendants, including children of its threads."""
    left = [pid]
    while left:
        yield (parent := left.pop())
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as file:
                    left += map(int, file.read().split())


def _reap_others(max_count: int) -> None:
    """Wait for up to `max_count` ended processes, so that they are not listed again."""
    for _ in range(max_count):
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return


def _reap_ended() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _reset_folders(folders: Sequence[str]) -> bool:
    """Empty and reset folders; return whether that succeeded."""
    try:
        for folder in folders:
            cleanup.clear_folder(folder)
            cleanup.reset_folder(folder)
    except OSError:
        return False
    return True


def _read_condition(folders: Sequence[str]) -> tuple[Any, ...]:
    """Return all settings of this process and its folders that untrusted code can change from outside.

    A jail is reused only if they are the same as at its start.
    """
    kinds = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return (
        *(resource.getrlimit(getattr(resource, kind)) for kind in kinds),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getparam(0).sched_priority,
        tuple(sorted(os.sched_getaffinity(0))),
        syscalls.io_priority(),
        *(_read_text(f"/proc/self/{name}") for name in ("autogroup", "oom_score_adj", "timerslack_ns")),
        os.umask(0o077),
        sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        *(tuple(os.listxattr(folder)) for folder in folders),
    )


def _read_text(path: str) -> str:
    """Return the text of a file; empty if it is missing or unreadable."""
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""
