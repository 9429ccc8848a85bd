"""The first process of a session: starts its interpreters, ends what they leave behind, and goes when told to.

Being the first of its world of processes, it cannot be killed from inside, and when it ends the kernel ends all others.

Easy to get wrong: a process that forks faster than others can be listed. So leftovers are killed until none is found,
and after a few rounds everything is, the interpreter too.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from whetstone.sandbox.guest import emptying, interpreter, kernel, wire

NOT_STARTED = 1000
"""What is told in place of an exit code where there was no process to be had."""
_ROUNDS, _MOMENT_SECONDS = 50, 0.001


def serve(host: socket.socket, folders: Sequence[str], household: Household) -> None:
    """Until the other side is gone.

    Args:
        folders: Those it may write to; work begins in the first.
    """
    with contextlib.suppress(OSError):  # the other side may be gone in the middle of a word
        _serve(host, folders, household)
    household.end()


def _serve(host: socket.socket, folders: Sequence[str], household: Household) -> None:
    kernel.set_dumpable(False)  # what it started may not look into it
    for folder in folders:  # so that a world somebody has lived in looks like a new one
        emptying.as_new(folder)
    at_first = _condition(folders)
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
        for child, status in _ended():
            if child == worker:
                worker = None
                wire.send_packet(host, {"died": os.waitstatus_to_exitcode(status)})
        if host.fileno() not in ready:
            continue
        message, files = wire.receive_packet(host)
        if message is None:
            return
        if message["do"] == "start":
            worker = _start(host, (awake, wake), files, folders[0], message, scoped=household.scoped)
        elif message["do"] == "sweep":
            swept, survived = household.sweep(worker) if worker is not None else (0, False)
            worker = worker if survived else None
            wire.send_packet(host, {"swept": swept, "survived": survived})
        elif message["do"] == "end":
            household.end()
            worker = None
            clean = not message["empty"] or (_emptied(folders) and _condition(folders) == at_first)
            wire.send_packet(host, {"ended": message["number"], "clean": clean})


def _start(
    host: socket.socket, own: tuple[int, int], files: list[int], folder: str, message: dict[str, Any], *, scoped: bool
) -> int | None:
    """The id of a new interpreter; None where there are too many processes."""
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
            os.setsid()  # what is done to a group or a session of processes is done to its own
            kernel.set_dumpable(True)
            if scoped:
                kernel.landlock([("/", None)])  # within what is allowed already; signals no longer reach the supervisor
            interpreter.serve(socket.socket(fileno=channel), output, folder, message)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(channel)
    os.close(output)
    return child if child > 0 else None


class Household:
    """The processes of a session but this one: who they are, and how they are ended.

    Made before this process gives up what it needs to look.

    Args:
        alone: Whether there is a world of processes of its own: then all that can be seen are its.
        scoped: Whether signals reach its own alone.
    """

    def __init__(self, *, alone: bool, scoped: bool) -> None:
        self.alone, self.scoped = alone, scoped
        kernel.adopt_orphans()
        self._children = -1 if alone else os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)

    def sweep(self, survivor: int) -> tuple[int, bool]:
        """(how many others were ended, whether the survivor is among the living)"""
        known: set[int] = set()
        for _ in range(_ROUNDS):
            found = [pid for pid in self._others() if pid != survivor]
            if not found:
                return len(known), True
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            known |= set(found)
            time.sleep(_MOMENT_SECONDS)
            _reap(len(found))
        self.end()
        return len(known), False

    def end(self) -> None:
        """Everyone."""
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self.alone or self.scoped:
                    os.kill(-1, signal.SIGKILL)
            for pid in () if self.alone or self.scoped else self._others():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _others(self) -> Iterator[int]:
        if self.alone:
            me = os.getpid()
            yield from (
                int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != me and _lives(name)
            )
            return
        for word in os.pread(self._children, 1 << 16, 0).split():
            yield from family(int(word))


def _lives(pid: str) -> bool:
    """Whether it is more than a name that its parent has not yet struck off; a thread may outlive the first one."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "ZX":
                    return True
    return False


def family(pid: int) -> Iterator[int]:
    """A process and those it has started, from whichever of its threads, as far as they can be seen."""
    left = [pid]
    while left:
        yield (parent := left.pop())
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as file:
                    left += map(int, file.read().split())


def _reap(most: int) -> None:
    """Take leave of the dead, so that they are not found again; those of others are theirs to bury, then ours."""
    for _ in range(most):
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return


def _ended() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _emptied(folders: Sequence[str]) -> bool:
    """Whether nothing is left in them, and on them."""
    try:
        for folder in folders:
            emptying.empty(folder)
            emptying.as_new(folder)
    except OSError:
        return False
    return True


def _condition(folders: Sequence[str]) -> tuple[Any, ...]:
    """What may be done from beside to this process, which hands it on to all that it starts, and to its folders."""
    kinds = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return (
        *(resource.getrlimit(getattr(resource, kind)) for kind in kinds),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getparam(0).sched_priority,
        tuple(sorted(os.sched_getaffinity(0))),
        kernel.io_priority(),
        *(_text_of(f"/proc/self/{name}") for name in ("autogroup", "oom_score_adj", "timerslack_ns")),
        os.umask(0o077),
        sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        *(tuple(os.listxattr(folder)) for folder in folders),
    )


def _text_of(path: str) -> str:
    """A file's text; empty where there is none, or it may not be read."""
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""
