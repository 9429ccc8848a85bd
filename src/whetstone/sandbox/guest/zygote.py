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
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any

from whetstone.sandbox.guest import confine, emptying, kernel, supervisor, wire

SHARED = "/dev/shm"
_TERMINALS = "/dev/pts"
_FOLDER = "session"
_FIRST_USER, _USERS = 40000, 20000


def main() -> None:
    """Serve until the other side is gone; then all sessions go, too."""
    host, control = _met(sys.argv[1:])
    settings = wire.receive_frame(host)
    if settings is None:
        return
    missing = []
    for name in settings["preload"]:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if settings["contained"]:
        settings |= _what_there_is()
    settings["landlock"] = settings["landlock"] and kernel.landlock_version() > 0  # in a world of its own, beside it
    calls = {own: confine.system_call_filters(own_files=own) if settings["seccomp"] else [] for own in (True, False)}
    gc.collect()
    gc.freeze()  # what is here now is shared by all; a collector that touches it would copy it
    kept = {"landlock": settings["landlock"], "seccomp": settings["seccomp"]}
    host.sendall(wire.frame({"ready": True, "missing": missing, **kept}))
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        ready = poll.poll(1000)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if settings["contained"]:
            _remove_folders_of_the_gone()
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


def _become_session(
    host: socket.socket, wanted: dict[str, Any], settings: dict[str, Any], calls: dict[bool, list[Any]]
) -> None:
    """Leave this world for one of its own; the grandchild, first process of that world, is the session."""
    bounds = confine.Bounds(**wanted["bounds"])
    user: int | None = wanted["user"]
    if settings["contained"]:
        user = _FIRST_USER + os.getpid() % _USERS if os.getuid() == 0 else None
    if settings["namespaces"]:
        own = [wanted["folder"], settings["temporary"], SHARED]
        _enter_world_of_its_own(own, bounds, user)
    else:
        if os.fork():
            os._exit(0)  # the server waits for this one, and the session belongs to nobody but itself
        own = [wanted["folder"] or _folder_of_this_process(user)]
    signal.set_wakeup_fd(-1)
    os.chdir(own[0])
    allowed: list[tuple[str, int | None]] = [(path, kernel.READ) for path in settings["readable"]]
    allowed += [(f"/dev/{name}", kernel.READ | kernel.WRITE) for name in ("null", "zero", "full", "random", "urandom")]
    allowed += [(path, None) for path in own]
    scoped = bool(settings["landlock"]) and kernel.landlock_version() >= 6
    household = supervisor.Household(alone=settings["namespaces"], scoped=scoped)
    own_files = settings["namespaces"] or user is not None
    confine.confine(bounds, allowed, user=user, calls=calls[own_files], landlock=settings["landlock"])
    supervisor.serve(host, own, household)
    os._exit(0)


def _met(where: Sequence[str]) -> tuple[socket.socket, socket.socket]:
    """The two sockets to the host: inherited under their numbers, or waiting in a folder."""
    if len(where) == 2:
        return socket.socket(fileno=int(where[0])), socket.socket(fileno=int(where[1]))
    channel, control = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(f"{where[0]}/channel")
    control.connect(f"{where[0]}/control")
    return channel, control


def _what_there_is() -> dict[str, Any]:
    """In a container nobody knows from outside what the kernel lets one do."""
    prefixes = {sys.prefix, sys.base_prefix, "/sandbox", "/usr", "/lib", "/lib64", "/bin", "/etc"}
    return {
        "landlock": kernel.landlock_version() >= 6,
        "seccomp": confine.FILTERS,
        "readable": sorted(prefixes),
    }


def _folder_of_this_process(user: int | None) -> str:
    folder = f"{tempfile.gettempdir()}/{_FOLDER}-{os.getpid()}"
    os.mkdir(folder, 0o700)
    if user is not None:
        os.chown(folder, user, user)
    return folder


def _remove_folders_of_the_gone() -> None:
    for entry in os.scandir(tempfile.gettempdir()):
        owner = entry.name.removeprefix(f"{_FOLDER}-")
        if owner != entry.name and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                emptying.empty(entry.path)
                os.rmdir(entry.path)


def _enter_world_of_its_own(own: Sequence[str], bounds: confine.Bounds, user: int | None) -> None:
    """Fork twice; only the second child returns, the first process of a world with these folders empty and its own."""
    outer = os.getuid(), os.getgid()
    users = kernel.NEW_USERS if user is None else 0
    kernel.unshare(users | kernel.NEW_PIDS | kernel.NEW_MOUNTS | kernel.NEW_IPC | kernel.NEW_HOSTNAME)
    if users:
        _same_user(*outer)
    if os.fork():
        os._exit(0)  # the server waits for this one, and the session belongs to nobody but itself
    owner = f"mode=700,uid={user},gid={user}" if user is not None else "mode=700"
    inside = kernel.NOSUID | kernel.NODEV
    kernel.mount("none", "/", "", kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("proc", "/proc", "proc", inside | kernel.NOEXEC)
    for folder in own:
        size = bounds.folder // 4 if folder == SHARED else bounds.folder
        kernel.mount("own", folder, "tmpfs", inside, f"size={size},nr_inodes={bounds.files},{owner}")
    if os.path.isdir(_TERMINALS):  # of all sessions, and there are only so many on a machine
        kernel.mount(
            "none", _TERMINALS, "tmpfs", inside | kernel.NOEXEC | kernel.READ_ONLY, "size=4k,nr_inodes=1,mode=555"
        )


def rehearse(work: str, temporary: str, own_user: bool) -> None:
    """Become a session once and say "ready": whether it can be done here is not known before."""
    child = os.fork()
    if child == 0:
        bounds = confine.Bounds(0, 8, 64, 1 << 20, 1 << 20, 64)
        user = _FIRST_USER if own_user else None
        calls = confine.system_call_filters(own_files=True)
        _enter_world_of_its_own([work, temporary, SHARED], bounds, user)
        confine.confine(bounds, [("/", kernel.READ)], user=user, calls=calls, landlock=False)
        print("ready", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(ChildProcessError):  # as first process of this world it buries the session, too
        while True:
            os.waitpid(-1, 0)


def _same_user(user: int, group: int) -> None:
    """In a new namespace of users, be who one was."""
    for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
