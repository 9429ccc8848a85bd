"""The process a game runs in: reads a request, calls the game, writes the answer, until nobody asks any more.

    request   (method, arguments)         the first one of a connection: ("make", (version, factory))
    answer    ("ok", value) | ("failed", name of the exception, text)

Each frame is eight bytes of length and a pickle. The frames go through a socket; what a package prints goes nowhere.

Easy to get wrong: the two ends must be the same version of this file, or a field is missing in the middle of a run.
The first request says the version, and another one is refused by name.
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
LENGTH = struct.Struct("!Q")


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who presses it stops the run, and the run stops us
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
                    raise RuntimeError(f"the run speaks version {version} of the workers' language, this is {VERSION}")
                value: Any = os.getpid()
            elif method == "close":
                value, game = (game.close() if game is not None else None), None
            else:
                if game is None:
                    game = make()
                value = getattr(game, method)(*arguments)
            answer: tuple[Any, ...] = ("ok", value)
        except BaseException as error:  # whatever it is, the run is told
            answer = ("failed", _name_of(error), str(error))
        try:
            _write(connection, answer)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            _write(connection, ("failed", "TypeError", f"{method} returned what cannot be sent: {error}"))
    if game is not None:
        game.close()


def _name_of(error: BaseException) -> str:
    """The name of an exception; of one that says a value cannot be read, that of its kind."""
    kinds = (ValueError, OverflowError, RecursionError)
    ours = type(error).__module__.startswith("whetstone.")
    kind = type(error) if ours else next((kind for kind in kinds if isinstance(error, kind)), type(error))
    return kind.__name__


def _read(connection: socket.socket) -> Any:
    """The next request; None where the run is gone."""
    head = _exactly(connection, LENGTH.size)
    body = _exactly(connection, LENGTH.unpack(head)[0]) if head else b""
    return pickle.loads(body) if body else None


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; none where the other end is closed."""
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
    body = pickle.dumps(answer)
    connection.sendall(LENGTH.pack(len(body)) + body)


if __name__ == "__main__":
    main()
