"""Where does a command listen, and who may ask there? The same for all that serve something."""

from __future__ import annotations

import socket
from pathlib import Path

from whetstone.errors import RecipeError
from whetstone.network.loopback import LOOPBACK
from whetstone.serving.access import Keys


def keys_for(address: str, file: Path | None) -> Keys:
    """Who may ask there.

    Raises:
        RecipeError: The address is beyond this machine, and there are no keys.
    """
    known = Keys.read(file) if file is not None else Keys()
    if not len(known) and address not in LOOPBACK:
        raise RecipeError(
            f"--host {address}: beyond this machine keys are asked for: --keys FILE (whetstone serve --new-key NAME)"
        )
    return known


def served_at(bound: socket.socket) -> str:
    """What agents are given as `base_url`."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def bound_to(address: str, port: int) -> socket.socket:
    """A socket that listens there. What is written to who connects is sent at once: asyncio asks for that itself only
    where a socket says that it is TCP, which Python's does not, and every answer would wait 40 ms.

    Raises:
        RecipeError: It cannot.
    """
    try:
        bound = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise RecipeError(f"http://{address}:{port} cannot be served: {error.strerror or error}") from None
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # who is accepted inherits it
    return bound
