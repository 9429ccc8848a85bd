"""Sandboxed agent program that can connect to a single address: bubblewrap, a separate user and limits.

For programs that make requests by themselves, such as agents. Sessions (`session.py`) have no sockets.

Note:
    The network of the program contains only the loopback interface. The socket that listens there is created inside and
    passed to the host, so that no relay is needed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox.guest.wire import PACKET_BYTES, send_packet
from whetstone.sandbox.isolation import (
    Isolation,
    choose_isolation,
    find_bwrap,
    guest_environment,
    guest_mounts,
    has_own_users,
    readable_paths,
)
from whetstone.sandbox.limits import Limits

HOME, WORKSPACE = "/home/agent", "/workspace"
"""Writable folders of the program, in addition to those for temporary files; the second one only if it has one."""
PORT = 8000
_FIRST_USER, _USERS = 60000, 5000
_START_SECONDS = 60.0
_START = (
    "import sys; sys.path.insert(0, '/sandbox'); "
    "from whetstone.sandbox.guest.run_with_relay import run_program; run_program()"
)
_user_numbers = itertools.count(secrets.randbelow(_USERS))


@dataclass(frozen=True, slots=True)
class SandboxedProcess:
    """Agent program that was started in its own namespaces.

    `start_program` creates it, and it waits until `release`.
    """

    process: asyncio.subprocess.Process
    """Process of the program on the host; ending it ends all its descendants."""
    door: socket.socket
    """Listening socket on `PORT` of the program's loopback interface, for a server that runs on the host."""
    host: socket.socket
    """Socket to the program's first process, which waits for `release`."""

    def release(self) -> None:
        """Let the program run; call it when a server accepts connections from `door`."""
        send_packet(self.host, {"begin": True})
        self.host.close()


async def start_program(
    argv: Sequence[str],
    *,
    folder: str,
    variables: Mapping[str, str],
    limits: Limits,
    also_readable: Sequence[str] = (),
    workspace: str = "",
) -> SandboxedProcess:
    """Start an agent program in its own namespaces; it waits until `SandboxedProcess.release`.

    Its standard output and standard error are pipes.

    Args:
        argv: Command, resolved by the PATH of the sandbox: that of this Python and of the system.
        folder: Working directory, readable by the program.
        variables: Environment variables in addition to those of every session.
        limits: Limits as for a session, except time and output. Memory is limited per process.
        also_readable: Further readable folders.
        workspace: Folder that is writable at `WORKSPACE`, the working directory instead of `folder`. The user of the
            program becomes the owner of its files; the caller limits their size.

    Raises:
        SandboxError: If this machine has no namespaces, or a folder does not exist or is not readable.
        InfrastructureError: If the program does not start.
    """
    choose_isolation(Isolation.NAMESPACES)
    host, guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.setblocking(False)
    has_own_user = has_own_users(Isolation.NAMESPACES)
    user = _FIRST_USER + next(_user_numbers) % _USERS if has_own_user else None
    if workspace and user is not None:
        await asyncio.to_thread(_change_owner, workspace, user)
    command = [
        *_bubblewrap(folder, variables, limits, also_readable, has_own_user, workspace),
        "--",
        sys.executable,
        "-I",
        "-c",
        _START,
    ]
    with guest:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(guest.fileno()),
            pass_fds=[guest.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    try:
        send_packet(host, {"port": PORT, "user": user, "argv": list(argv), "bounds": asdict(limits.kernel_limits)})
        async with asyncio.timeout(_START_SECONDS):
            door = await _receive_door(host)
    except (OSError, TimeoutError) as error:
        host.close()
        process.kill()
        reason = (await process.communicate())[1].decode(errors="replace").strip().rpartition("\n")[2]
        raise InfrastructureError(f"sandbox: the program did not start: {reason or error}") from None
    except BaseException:
        host.close()
        process.kill()
        raise
    return SandboxedProcess(process, door, host)


async def _receive_door(host: socket.socket) -> socket.socket:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(host, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(host)
    _, files, _, _ = socket.recv_fds(host, PACKET_BYTES, 1)
    if not files:
        raise OSError("it ended before it ran")
    door = socket.socket(fileno=files[0])
    door.setblocking(False)
    return door


def _change_owner(folder: str, user: int) -> None:
    for place, folders, files in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in (*folders, *files))):
            os.chown(path, user, user, follow_symlinks=False)


def _bubblewrap(
    folder: str,
    variables: Mapping[str, str],
    limits: Limits,
    also_readable: Sequence[str],
    has_own_user: bool,
    workspace: str,
) -> list[str]:
    arguments = [find_bwrap(), "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    arguments += ["--unshare-cgroup-try", "--hostname", "sandbox", "--new-session", "--clearenv"]
    if has_own_user:  # it changes its user and drops all capabilities
        for name in ("SETUID", "SETGID", "SETPCAP"):
            arguments += ["--cap-add", f"CAP_{name}"]
    else:
        arguments += ["--unshare-user"]
    for name, value in {**guest_environment(), "HOME": HOME, "TMPDIR": "/tmp", **variables}.items():
        arguments += ["--setenv", name, value]
    size = str(limits.kernel_limits.folder)
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/var/tmp", HOME):
        arguments += ["--perms", "1777", "--size", size, "--tmpfs", place]
    started_in = [] if workspace else [folder or "."]
    paths = [*readable_paths(), *(str(Path(path).absolute()) for path in (*started_in, *also_readable))]
    for path in paths:
        if not os.path.lexists(path):
            raise SandboxError(
                f"sandbox: there is no folder {path} for the program to read; create it, or correct the path"
            )
        if has_own_user and not os.stat(path).st_mode & stat.S_IROTH:
            raise SandboxError(
                f"sandbox: the program runs as another user, who cannot read {path}; run chmod o+rX {path}"
            )
    parents = {str(parent) for path in paths for parent in Path(path).parents} - {"/", "/tmp", "/var/tmp", HOME}
    for parent in sorted(parents):
        arguments += ["--perms", "0755", "--dir", parent]
    for path in paths:
        if os.path.islink(path) and path.count("/") == 1:
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind", path, path]
    arguments += ["--bind", workspace, WORKSPACE] if workspace else []
    workdir = WORKSPACE if workspace else str(Path(folder or ".").absolute())
    return [*arguments, *guest_mounts(), "--remount-ro", "/", "--chdir", workdir]
