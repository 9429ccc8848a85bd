"""The fork server: a Python that has imported what is slow to import, and becomes a session in milliseconds.

It never runs foreign code. Each session is a process in a world of its own: its own processes, its own empty folder,
its own user; behind it stands a `supervisor`, which starts the interpreters.

Easy to get wrong: what it must never have is a thread, since only the one that forks lives on in the child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

from whetstone.sandbox.guest import confine, kernel, supervisor, wire

SHARED = "/dev/shm"


def main() -> None:
    """Serve until the other side is gone; then all sessions go, too."""
    host = socket.socket(fileno=int(sys.argv[1]))
    settings = wire.receive_frame(host)
    if settings is None:
        return
    missing = []
    for name in settings["preload"]:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    calls = confine.system_call_filter() if settings["seccomp"] else None
    gc.collect()
    gc.freeze()  # what is here now is shared by all; a collector that touches it would copy it
    host.sendall(wire.frame({"ready": True, "missing": missing, "landlock": kernel.landlock_version()}))
    control = socket.socket(fileno=int(sys.argv[2]))
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        ready = poll.poll(1000)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not ready:
            continue
        message, files = wire.receive_packet(control)
        if message is None:
            return
        try:
            child = os.fork()
        except OSError:
            child = -1  # the session's socket closes below, which says it all
        if child == 0:
            try:
                host.close()
                control.close()
                _become_session(socket.socket(fileno=files[0]), message, settings, calls)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        for file in files:
            os.close(file)


def _become_session(host: socket.socket, wanted: dict[str, Any], settings: dict[str, Any], calls: Any) -> None:
    """Leave this world for one of its own; the grandchild, first process of that world, is the session."""
    bounds = confine.Bounds(**wanted["bounds"])
    user: int | None = wanted["user"]
    if settings["namespaces"]:
        outer = os.getuid(), os.getgid()
        users = kernel.NEW_USERS if user is None else 0
        kernel.unshare(users | kernel.NEW_PIDS | kernel.NEW_MOUNTS | kernel.NEW_IPC | kernel.NEW_HOSTNAME)
        if users:
            _same_user(*outer)
    if os.fork():
        os._exit(0)  # the server waits for this one, and the session belongs to nobody but itself
    signal.set_wakeup_fd(-1)
    own = [wanted["folder"]]
    if settings["namespaces"]:
        own += [settings["temporary"], SHARED]
        owner = f"mode=700,uid={user},gid={user}" if user is not None else "mode=700"
        inside = kernel.NOSUID | kernel.NODEV
        kernel.mount("none", "/", "", kernel.RECURSIVE | kernel.PRIVATE)
        kernel.mount("proc", "/proc", "proc", inside | kernel.NOEXEC)
        for folder in own:
            size = bounds.folder // 4 if folder == SHARED else bounds.folder
            kernel.mount("own", folder, "tmpfs", inside, f"size={size},nr_inodes={bounds.files},{owner}")
    os.chdir(own[0])
    allowed: list[tuple[str, int | None]] = [(path, kernel.READ) for path in settings["readable"]]
    allowed += [(f"/dev/{name}", kernel.READ | kernel.WRITE) for name in ("null", "zero", "full", "random", "urandom")]
    allowed += [(path, None) for path in own]
    scoped = bool(settings["landlock"]) and kernel.landlock_version() >= 6
    household = supervisor.Household(alone=settings["namespaces"], scoped=scoped)
    confine.confine(bounds, allowed, user=user, calls=calls, landlock=settings["landlock"])
    supervisor.serve(host, own, household)
    os._exit(0)


def _same_user(user: int, group: int) -> None:
    """In a new namespace of users, be who one was."""
    for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
