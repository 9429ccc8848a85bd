"""Wire format between host and guest: packets that may carry open files, and length-prefixed frames.

Only JSON crosses the boundary, never a pickle, and the host trusts nothing that it receives.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_BYTES = 65536
_MAX_FRAME_BYTES = 1 << 30
"""Maximum size of a frame to the guest in bytes, including the files of a session."""
LENGTH = struct.Struct("!I")


def send_packet(to: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send one message on a `SOCK_SEQPACKET` socket, with open file descriptors if there are any."""
    socket.send_fds(to, [json.dumps(message).encode()], list(files))


def receive_packet(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its file descriptors; blocks.

    Returns:
        (message, file descriptors); the message is None if the connection is closed.

    Raises:
        ValueError: If the packet is not a JSON object.
    """
    data, files, _, _ = socket.recv_fds(source, PACKET_BYTES, 8)
    return (_parse_object(data) if data else None), list(files)


def frame_message(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON with its length prefix, for a `SOCK_STREAM` socket."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def receive_frame(source: socket.socket) -> dict[str, Any] | None:
    """Receive the next length-prefixed message; None if the connection is closed. Blocks.

    Raises:
        ValueError: If the frame is not a JSON object, or is larger than 1 GiB.
    """
    head = _read_exactly(source, LENGTH.size)
    size = LENGTH.unpack(head)[0] if head is not None else 0
    if size > _MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes exceeds the maximum of {_MAX_FRAME_BYTES}")
    body = _read_exactly(source, size) if head is not None else None
    return _parse_object(body) if body is not None else None


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message is not a JSON object")
    return message


def _read_exactly(source: socket.socket, size: int) -> bytes | None:
    pieces = []
    while size:
        piece = source.recv(min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
