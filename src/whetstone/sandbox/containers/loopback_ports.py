"""Ports on the loopback interface of a container that are served by this process.

A container without a network has its own loopback interface. A listening socket remains in the network namespace
in which it was created, whichever process holds it; this process therefore accepts connections from inside, and the
container reaches nothing else.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

from whetstone.errors import InfrastructureError

_LISTEN_SECONDS = 30.0
_LISTEN = (
    "import socket, sys\n"
    "host = socket.socket(fileno=int(sys.argv[1]))\n"
    "with socket.create_server(('127.0.0.1', int(sys.argv[2])), backlog=64) as listening:\n"
    "    socket.send_fds(host, [b'x'], [listening.fileno()])\n"
)


def can_listen_in_containers() -> bool:
    """Return whether the program that enters a network namespace is installed."""
    return shutil.which("nsenter") is not None


def listen_in_container(process: int, port: int) -> socket.socket:
    """Return a listening socket at 127.0.0.1 of the network namespace of a container.

    Args:
        process: Process id of the first process of the container.
        port: Port that no program of the container uses.

    Raises:
        InfrastructureError: The namespace cannot be entered, or the port is in use.
    """
    if not process or _namespace(process, "net") in ("", _namespace("self", "net")):
        raise InfrastructureError("container: its network namespace is not visible on this machine")
    enter = ["nsenter", f"--target={process}", "--net"]
    if os.getuid() != 0:
        enter += ["--user", "--preserve-credentials"]
    host_end, guest_end = socket.socketpair()
    with host_end, guest_end:
        words = [*enter, sys.executable, "-I", "-S", "-c", _LISTEN, str(guest_end.fileno()), str(port)]
        try:
            done = subprocess.run(
                words, pass_fds=[guest_end.fileno()], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_LISTEN_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"container: no port {port}: {error}") from None
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise InfrastructureError(f"container: no port {port}: {reason}")
        files = socket.recv_fds(host_end, 1, 1)[1]
    listening = socket.socket(fileno=files[0])
    listening.setblocking(False)
    return listening


def _namespace(process: int | str, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/{kind}")
    except OSError:
        return ""
