"""How both sides speak: small packets that may carry open files, and frames of any length.

Nothing but JSON crosses the boundary, never a pickle; and who is outside believes nothing that comes from inside.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_BYTES = 65536
_MOST_FRAME_BYTES = 1 << 30
"""Of what one who answers may be sent at once; files of a session are among it."""
LENGTH = struct.Struct("!I")


def send_packet(to: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """One packet of a `SOCK_SEQPACKET` socket, with open files if there are any."""
    socket.send_fds(to, [json.dumps(message).encode()], list(files))


def receive_packet(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """(message, files); None for the message where the other side is gone.

    Raises:
        ValueError: It is no message.
    """
    data, files, _, _ = socket.recv_fds(source, PACKET_BYTES, 8)
    return (_mapping(data) if data else None), list(files)


def frame(message: Mapping[str, Any]) -> bytes:
    """A message with its length before it, for a `SOCK_STREAM` socket."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def receive_frame(source: socket.socket) -> dict[str, Any] | None:
    """The next message; None where the other side is gone. Blocks.

    Raises:
        ValueError: It is no message.
    """
    head = _exactly(source, LENGTH.size)
    size = LENGTH.unpack(head)[0] if head is not None else 0
    if size > _MOST_FRAME_BYTES:
        raise ValueError(f"a message of {size} bytes")
    body = _exactly(source, size) if head is not None else None
    return _mapping(body) if body is not None else None


def _mapping(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except RecursionError:
        raise ValueError("a message without end") from None
    if not isinstance(message, dict):
        raise ValueError("a message that is no mapping")
    return message


def _exactly(source: socket.socket, size: int) -> bytes | None:
    pieces = []
    while size:
        piece = source.recv(min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
