"""Canaries that detect an escape from the sandbox: files, processes and sockets of the user who runs the sessions."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from attack_list import Reach

_GET_FLAGS = 0x80086601
_IOPRIO_GET = 252
_SYSTEM = ("/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname")


class Canaries:
    """Targets of attacks, with the detection of changes.

    Args:
        folder: Empty folder of the canaries.
        python: Folder that untrusted code may read and that gets a canary; None if no such folder is writable.
        server: Process id of the fork server.
        neighbour: First process of a concurrent session.
        neighbours_folder: Folder of the concurrent session on this machine.
    """

    def __init__(
        self, folder: Path, python: Path | None, *, server: int, neighbour: int, neighbours_folder: str
    ) -> None:
        self.token, self._server = secrets.token_hex(16), server
        self.folder = folder / "home"
        self.folder.mkdir()
        self.folder.chmod(0o755)
        self._python = (python or self.folder) / "readable"
        self._listeners = _listeners(folder)
        inet = self._listeners[0]
        self._process = self._start_process()
        self._write_files()
        self.reach = Reach(
            CANARY=str(self.folder / "file"),
            SECRET=str(self.folder / "secret"),
            READABLE=str(self._python / "canary"),
            PID=self._process.pid,
            HOST=os.getpid(),
            SERVER=server,
            PORT=inet.getsockname()[1],
            ABSTRACT="\0" + self.token,
            NAMED=str(folder / "stream"),
            DATAGRAMS=str(folder / "datagrams"),
            NEIGHBOUR=neighbours_folder,
            NEIGHBOUR_PID=neighbour,
            MARK=secrets.token_hex(16),
        )
        self._listeners.append(_bind_socket(socket.AF_UNIX, socket.SOCK_STREAM, self.reach.ABSTRACT))
        self._before = self._state()

    def find_changes(self, output: str) -> list[str]:
        """Return the changed canaries and leaked secrets, and restore the canaries.

        Args:
            output: Everything that the attack returned.
        """
        after = self._state()
        changes = [name for name, value in after.items() if value != self._before[name]]
        changes += ["a secret is told"] if self.token in output else []
        changes += ["the kernel said yes"] if self.reach.MARK in output else []
        if any(name in changes for name in ("files", "python", "process")):
            self._restore()
        return changes

    def close(self) -> None:
        """Stop the process and close the sockets."""
        self._process.kill()
        self._process.wait()
        for each in self._listeners:
            each.close()

    def _restore(self) -> None:
        self._process.kill()
        self._process.wait()
        for folder in (self.folder, self._python):
            folder.chmod(0o755)
            for path in folder.iterdir():
                if path.name not in ("secret", "readable"):
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        self._process = self._start_process()
        self._write_files()
        self.reach = Reach(**{name: getattr(self.reach, name) for name in Reach.__slots__} | {"PID": self._process.pid})
        self._before = self._state()

    def _write_files(self) -> None:
        self._python.mkdir(exist_ok=True)
        for path in (self.folder / "file", self.folder / "secret", self._python / "canary"):
            path.write_text(self.token if path.name == "secret" else "canary")
            path.chmod(0o644)
            with contextlib.suppress(OSError):  # a file system without extended attributes
                os.setxattr(path, "user.note", b"canary")

    def _start_process(self) -> subprocess.Popen[bytes]:
        """Start an idle process and wait until it runs."""
        code = "import os, time\nos.write(1, b'x')\nos.close(1)\nwhile True: time.sleep(1000)"
        words = [sys.executable, "-S", "-c", code, self.token]
        process = subprocess.Popen(words, env={"TOKEN": self.token}, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.read()
        process.stdout.close()
        return process

    def _state(self) -> dict[str, Any]:
        return {
            "files": _describe_files(self.folder),
            "python": _describe_files(self._python),
            "process": _describe_process(self._process.pid),
            "host": _describe_process(os.getpid()),
            "server": _describe_process(self._server),
            "sockets": sum(map(_count_received, self._listeners)),
            "machine": [_text(path) for path in _SYSTEM],
        }


def _listeners(folder: Path) -> list[socket.socket]:
    inet = _bind_socket(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
    datagrams = _bind_socket(socket.AF_INET, socket.SOCK_DGRAM, inet.getsockname())
    paths = [(socket.SOCK_STREAM, "stream"), (socket.SOCK_DGRAM, "datagrams")]
    listeners = [inet, datagrams, *(_bind_socket(socket.AF_UNIX, kind, str(folder / name)) for kind, name in paths)]
    for _, name in paths:
        (folder / name).chmod(0o777)
    return listeners


def _bind_socket(family: socket.AddressFamily, kind: socket.SocketKind, address: Any) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    listener.setblocking(False)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return listener


def _count_received(listening: socket.socket) -> int:
    """Return the number of received connections and datagrams."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            if listening.type == socket.SOCK_STREAM:
                listening.accept()[0].close()
            else:
                listening.recv(4096)
            count += 1
    return count


def _describe_files(folder: Path) -> list[Any]:
    descriptions = []
    for path in [folder, *sorted(folder.iterdir())]:
        about = path.lstat()
        facts: tuple[Any, ...] = (about.st_mode, about.st_uid, about.st_gid, path.name)
        if path.name in ("file", "secret", "canary"):  # the times of a folder change when it is restored
            facts += (about.st_mtime_ns, about.st_ctime_ns, about.st_nlink, path.read_bytes())
        if not path.is_symlink() and not path.is_fifo():
            facts += (_flags(path), [(name, os.getxattr(path, name)) for name in os.listxattr(path)])
        descriptions.append(facts)
    return descriptions


def _flags(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return fcntl.ioctl(file, _GET_FLAGS, bytes(8))
    except OSError:  # a file system without flags
        return b""
    finally:
        os.close(file)


def _describe_process(pid: int) -> Any:
    """Return whether a process is alive, with all properties that other processes can set."""
    try:
        stat = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (
            stat[0] in "TtZX",
            stat[1:4],  # parent, group, session
            os.getpriority(os.PRIO_PROCESS, pid),
            os.sched_getscheduler(pid),
            sorted(os.sched_getaffinity(pid)),
            [resource.prlimit(pid, kind) for kind in range(16)],
            _input_and_output(pid),
            [_text(f"/proc/{pid}/{name}") for name in ("comm", "oom_score_adj", "cgroup")],
            signal.getsignal(signal.SIGTERM) if pid == os.getpid() else None,
        )
    except (OSError, IndexError):
        return "gone"


def _input_and_output(pid: int) -> int:
    return int(ctypes.CDLL(None).syscall(_IOPRIO_GET, 1, pid))


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""
