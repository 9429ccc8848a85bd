"""Fork server inside the sandbox: a Python process with preloaded modules that becomes a session by forking.

It never runs untrusted code. Each session is a process with its own namespaces: its own processes, an empty folder and
a separate user. A `supervisor` in it starts the interpreters. A fork takes milliseconds.

Note:
    The fork server must have no threads, since only the forking thread exists in the child.
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

from whetstone.sandbox.guest import cleanup, confine, supervisor, syscalls, wire

SHARED = "/dev/shm"
_TERMINALS = "/dev/pts"
_FOLDER = "session"
_FIRST_USER, _USERS = 40000, 20000


def run_fork_server() -> None:
    """Run the fork server until the host closes the connection; all sessions end with it.

    The host starts it with `isolation.server_command`, or in a container with `isolation.container_command`.
    """
    host, control = _connect(sys.argv[1:])
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
        settings |= _detect_settings()
    settings["landlock"] = (
        settings["landlock"] and syscalls.landlock_version() > 0
    )  # in namespaces, in addition to them
    calls = {
        has_own_files: confine.system_call_filters(own_files=has_own_files) if settings["seccomp"] else []
        for has_own_files in (True, False)
    }
    gc.collect()
    gc.freeze()  # present objects are shared by all children; the collector would copy their pages
    guarantees = {"landlock": settings["landlock"], "seccomp": settings["seccomp"]}
    host.sendall(wire.frame_message({"ready": True, "missing": missing, **guarantees}))
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        ready = poll.poll(1000)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if settings["contained"]:
            _remove_stale_folders()
        if not ready:
            continue
        message, files = wire.receive_packet(control)
        if message is None:
            return
        try:
            child = os.fork()
        except OSError:
            child = -1  # the session's socket closes below, which reports the failure
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
    """Turn a forked child into a session: enter namespaces, drop privileges, and run the supervisor. Does not return.

    Args:
        host: Socket to the host.
        wanted: Limits, user and folder of the session.
        settings: Settings of the fork server.
        calls: System call filters, by whether the session owns all files of its user.
    """
    bounds = confine.Bounds(**wanted["bounds"])
    user: int | None = wanted["user"]
    if settings["contained"]:
        user = _FIRST_USER + os.getpid() % _USERS if os.getuid() == 0 else None
    if settings["namespaces"]:
        own = [wanted["folder"], settings["temporary"], SHARED]
        _enter_namespaces(own, bounds, user)
    else:
        if os.fork():
            os._exit(0)  # the server waits for this one, and the session is independent of it
        own = [wanted["folder"] or _make_folder(user)]
    signal.set_wakeup_fd(-1)
    os.chdir(own[0])
    allowed: list[tuple[str, int | None]] = [(path, syscalls.READ) for path in settings["readable"]]
    allowed += [
        (f"/dev/{name}", syscalls.READ | syscalls.WRITE) for name in ("null", "zero", "full", "random", "urandom")
    ]
    allowed += [(path, None) for path in own]
    is_scoped = bool(settings["landlock"]) and syscalls.landlock_version() >= 6
    processes = supervisor.ProcessGroup(has_pid_namespace=settings["namespaces"], is_scoped=is_scoped)
    own_files = settings["namespaces"] or user is not None
    confine.drop_privileges(bounds, allowed, user=user, calls=calls[own_files], landlock=settings["landlock"])
    supervisor.run_supervisor(host, own, processes)
    os._exit(0)


def _connect(where: Sequence[str]) -> tuple[socket.socket, socket.socket]:
    """Return the sockets for settings and control: inherited descriptors, or connections to sockets in a folder."""
    if len(where) == 2:
        return socket.socket(fileno=int(where[0])), socket.socket(fileno=int(where[1]))
    channel, control = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(f"{where[0]}/channel")
    control.connect(f"{where[0]}/control")
    return channel, control


def _detect_settings() -> dict[str, Any]:
    """Return the settings that depend on a container's kernel features, which the host cannot know."""
    prefixes = {sys.prefix, sys.base_prefix, "/sandbox", "/usr", "/lib", "/lib64", "/bin", "/etc"}
    return {
        "landlock": syscalls.landlock_version() >= 6,
        "seccomp": confine.FILTERS,
        "readable": sorted(prefixes),
    }


def _make_folder(user: int | None) -> str:
    folder = f"{tempfile.gettempdir()}/{_FOLDER}-{os.getpid()}"
    os.mkdir(folder, 0o700)
    if user is not None:
        os.chown(folder, user, user)
    return folder


def _remove_stale_folders() -> None:
    for entry in os.scandir(tempfile.gettempdir()):
        owner = entry.name.removeprefix(f"{_FOLDER}-")
        if owner != entry.name and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                cleanup.clear_folder(entry.path)
                os.rmdir(entry.path)


def _enter_namespaces(own: Sequence[str], bounds: confine.Bounds, user: int | None) -> None:
    """Enter new namespaces with empty folders. Forks twice.

    Only the second child, their first process, returns.
    """
    outer = os.getuid(), os.getgid()
    users = syscalls.NEW_USERS if user is None else 0
    syscalls.enter_namespaces(
        users | syscalls.NEW_PIDS | syscalls.NEW_MOUNTS | syscalls.NEW_IPC | syscalls.NEW_HOSTNAME
    )
    if users:
        _map_same_user(*outer)
    if os.fork():
        os._exit(0)  # the server waits for this one, and the session is independent of it
    owner = f"mode=700,uid={user},gid={user}" if user is not None else "mode=700"
    inside = syscalls.NOSUID | syscalls.NODEV
    syscalls.mount_file_system("none", "/", "", syscalls.RECURSIVE | syscalls.PRIVATE)
    syscalls.mount_file_system("proc", "/proc", "proc", inside | syscalls.NOEXEC)
    for folder in own:
        size = bounds.folder // 4 if folder == SHARED else bounds.folder
        syscalls.mount_file_system("own", folder, "tmpfs", inside, f"size={size},nr_inodes={bounds.files},{owner}")
    if os.path.isdir(_TERMINALS):  # shared by all sessions and limited per machine
        syscalls.mount_file_system(
            "none", _TERMINALS, "tmpfs", inside | syscalls.NOEXEC | syscalls.READ_ONLY, "size=4k,nr_inodes=1,mode=555"
        )


def probe_session(work: str, temporary: str, own_user: bool) -> None:
    """Become a session once and print "ready", to test whether this machine supports namespaces.

    Args:
        work: Working directory of sessions.
        temporary: Folder of temporary files.
        own_user: Whether sessions have separate users.
    """
    child = os.fork()
    if child == 0:
        bounds = confine.Bounds(0, 8, 64, 1 << 20, 1 << 20, 64)
        user = _FIRST_USER if own_user else None
        calls = confine.system_call_filters(own_files=True)
        _enter_namespaces([work, temporary, SHARED], bounds, user)
        confine.drop_privileges(bounds, [("/", syscalls.READ)], user=user, calls=calls, landlock=False)
        print("ready", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(ChildProcessError):  # as first process of this namespace it reaps the session, too
        while True:
            os.waitpid(-1, 0)


def _map_same_user(user: int, group: int) -> None:
    """Map the current user and group to themselves in a new user namespace."""
    for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
