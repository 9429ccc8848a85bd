"""A foreign program that may ask at one address: bubblewrap, its own user and limits, and a network with one door.

For programs that are not called from outside but run, and ask: agents. Sessions (`session.py`) have no sockets at all.

Easy to get wrong: the network. The program's has loopback and nothing else; what listens there is a socket made inside
and held outside, so not even a relay is needed.
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
from whetstone.sandbox.isolation import Isolation, choose, environment, find_bwrap, guest_places, own_users, readable
from whetstone.sandbox.limits import Limits

HOME = "/home/agent"
"""The folder it may write to, beside those for temporary files."""
PORT = 8000
_FIRST_USER, _USERS = 60000, 5000
_START_SECONDS = 60.0
_START = "import sys; sys.path.insert(0, '/sandbox'); from whetstone.sandbox.guest.enclosed import main; main()"
_users = itertools.count(secrets.randbelow(_USERS))


@dataclass(frozen=True, slots=True)
class Enclosed:
    """A program under way."""

    process: asyncio.subprocess.Process
    """All it started ends with it."""
    door: socket.socket
    """Listens on port `PORT` of its loopback; for a server to take."""
    host: socket.socket
    """What it waits at."""

    def begin(self) -> None:
        """Let it run: somebody stands behind the door."""
        send_packet(self.host, {"begin": True})
        self.host.close()


async def start(
    argv: Sequence[str],
    *,
    folder: str,
    variables: Mapping[str, str],
    limits: Limits,
    also_readable: Sequence[str] = (),
) -> Enclosed:
    """A program that waits for `begin`, its output in pipes.

    Args:
        argv: What it is; found by the PATH inside, which is that of this Python and the system's.
        folder: Where it runs; it may read what is in it.
        variables: Of its environment, beside what every session has.
        limits: As of a session, but for time and output. Memory is bounded for each process.
        also_readable: Folders it may read besides.

    Raises:
        SandboxError: This machine has no namespaces, or such a folder.
        InfrastructureError: It does not start.
    """
    choose(Isolation.NAMESPACES)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    own = own_users(Isolation.NAMESPACES)
    user = _FIRST_USER + next(_users) % _USERS if own else None
    command = [*_bubblewrap(folder, variables, limits, also_readable, own), "--", sys.executable, "-I", "-c", _START]
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(theirs.fileno()),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    try:
        send_packet(ours, {"port": PORT, "user": user, "argv": list(argv), "bounds": asdict(limits.bounds)})
        async with asyncio.timeout(_START_SECONDS):
            door = await _door(ours)
    except (OSError, TimeoutError) as error:
        ours.close()
        process.kill()
        said = (await process.communicate())[1].decode(errors="replace").strip().rpartition("\n")[2]
        raise InfrastructureError(f"the sandbox's program does not start: {said or error}") from None
    except BaseException:
        ours.close()
        process.kill()
        raise
    return Enclosed(process, door, ours)


async def _door(ours: socket.socket) -> socket.socket:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(ours, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(ours)
    _, files, _, _ = socket.recv_fds(ours, PACKET_BYTES, 1)
    if not files:
        raise OSError("it ended before it ran")
    door = socket.socket(fileno=files[0])
    door.setblocking(False)
    return door


def _bubblewrap(
    folder: str, variables: Mapping[str, str], limits: Limits, also_readable: Sequence[str], own: bool
) -> list[str]:
    arguments = [find_bwrap(), "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    arguments += ["--unshare-cgroup-try", "--hostname", "sandbox", "--new-session", "--clearenv"]
    if own:  # it makes itself another user, and keeps nothing
        for name in ("SETUID", "SETGID", "SETPCAP"):
            arguments += ["--cap-add", f"CAP_{name}"]
    else:
        arguments += ["--unshare-user"]
    for name, value in {**environment(), "HOME": HOME, "TMPDIR": "/tmp", **variables}.items():
        arguments += ["--setenv", name, value]
    size = str(limits.bounds.folder)
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/var/tmp", HOME):
        arguments += ["--perms", "1777", "--size", size, "--tmpfs", place]
    paths = [*readable(), *(str(Path(path).absolute()) for path in (folder or ".", *also_readable))]
    for path in paths:
        if not os.path.lexists(path):
            raise SandboxError(f"there is no folder {path} that the program could read")
        if own and not os.stat(path).st_mode & stat.S_IROTH:
            raise SandboxError(f"{path} is closed to others, and the program is another user: chmod o+rX {path}")
    above = {str(parent) for path in paths for parent in Path(path).parents} - {"/", "/tmp", "/var/tmp", HOME}
    for parent in sorted(above):
        arguments += ["--perms", "0755", "--dir", parent]
    for path in paths:
        if os.path.islink(path) and path.count("/") == 1:
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind", path, path]
    return [*arguments, *guest_places(), "--remount-ro", "/", "--chdir", str(Path(folder or ".").absolute())]
