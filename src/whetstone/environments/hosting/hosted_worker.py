"""Program of a worker process that runs games: reads requests, calls the game and writes responses, until EOF.

    request   (method, arguments)         the first one of a connection: ("make", (version, factory))
    answer    ("ok", value) | ("failed", name of the exception, text)

Each frame is eight bytes of length and a pickle. The frames use a socket; output that a package prints is discarded.
`workers.py` starts the program and is the other end.

Note:
    Both ends must have the same version of this file; otherwise a field would be missing in the middle of a run. The
    first request has the version, and another version is refused.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import sys
from typing import Any

VERSION = 1
"""Version of the worker protocol; a worker refuses a run with another version."""
LENGTH = struct.Struct("!Q")
"""Format of the length of a frame: eight bytes, big-endian."""


def run_hosted_worker() -> None:
    """Serve requests on the socket whose file descriptor is the first argument.

    Returns when the run closes the connection.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the run, and the run stops its workers
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    game: Any = None
    make: Any = None
    while (request := _read(connection)) is not None:
        method, arguments = request
        try:
            if method == "make":
                version, make = arguments
                if version != VERSION:
                    raise RuntimeError(
                        f"the run uses version {version} of the worker protocol, the worker version {VERSION}; "
                        "restart the run"
                    )
                value: Any = os.getpid()
            elif method == "close":
                value, game = (game.close() if game is not None else None), None
            else:
                if game is None:
                    game = make()
                value = getattr(game, method)(*arguments)
            answer: tuple[Any, ...] = ("ok", value)
        except BaseException as error:  # any exception is reported to the run
            answer = ("failed", _error_name(error), str(error))
        try:
            _write(connection, answer)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            _write(connection, ("failed", "TypeError", f"{method} returned a value that cannot be pickled: {error}"))
    if game is not None:
        game.close()


def _error_name(error: BaseException) -> str:
    """Return the name of an exception as the run can recreate it.

    For a subclass of `ValueError`, `OverflowError` or `RecursionError` outside this project, the name of the base
    class.
    """
    kinds = (ValueError, OverflowError, RecursionError)
    is_own = type(error).__module__.startswith("whetstone.")
    kind = type(error) if is_own else next((kind for kind in kinds if isinstance(error, kind)), type(error))
    return kind.__name__


def _read(connection: socket.socket) -> Any:
    """Return the next request, or None if the run closed the connection."""
    head = _read_exactly(connection, LENGTH.size)
    body = _read_exactly(connection, LENGTH.unpack(head)[0]) if head else b""
    return pickle.loads(body) if body else None


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes from the socket.

    Return no bytes if the run closed the connection.
    """
    pieces = []
    while count:
        try:
            piece = connection.recv(min(count, 1 << 20))
        except ConnectionError:
            return b""
        if not piece:
            return b""
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _write(connection: socket.socket, answer: Any) -> None:
    """Send a response to the run as one frame: its length and a pickle."""
    body = pickle.dumps(answer)
    connection.sendall(LENGTH.pack(len(body)) + body)


if __name__ == "__main__":
    run_hosted_worker()
