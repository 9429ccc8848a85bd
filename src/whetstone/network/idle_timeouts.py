"""uvicorn HTTP protocol with limits of time and size for each connection (slow clients).

Note:
    An application does not see a client that sends half of a request head. It cannot end a client that reads its
    response byte by byte. The limits are therefore set at the socket.
"""

from __future__ import annotations

import asyncio
from typing import Any

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command

SECONDS_TO_ASK = 30.0
"""Time limit for the head of a request, in seconds: from the connection, or from the first byte of a later request."""
SECONDS_TO_READ = 60.0
"""Maximum time in seconds for which a client may stop reading its response."""
MAX_HEAD_BYTES = 1 << 16
"""Maximum size in bytes of a head, or of trailers after a body, that arrives in pieces."""

MAX_LATE_BYTES = 1 << 20
"""Maximum number of bytes of a request body that may arrive after the response was sent."""


def bounded_http_protocol(
    *, seconds_to_ask: float = SECONDS_TO_ASK, seconds_to_read: float = SECONDS_TO_READ
) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP/1.1 protocol class with limits on slow clients.

    Usage: `uvicorn.Config(app, http=bounded_http_protocol())`.

    Args:
        seconds_to_ask: Time limit for the head of a request, in seconds.
        seconds_to_read: Maximum time in seconds for which a client may stop reading its response.

    Raises:
        RecipeError: If uvicorn or httptools is not installed.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        raise RecipeError(f"serving needs starlette, uvicorn and httptools: {install_command('serve')}") from None

    class LimitedProtocol(HttpToolsProtocol):  # type: ignore[misc]
        """HTTP/1.1 with limits."""

        _head_timer: asyncio.TimerHandle | None = None
        _read_timer: asyncio.TimerHandle | None = None
        _is_progress, _piece_bytes = False, 0
        """Whether the last data completed a head, a body or a part of a body; bytes of pieces since then."""
        _late_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_head_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_head_timer()
            self._stop_read_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._is_progress = False
            super().data_received(data)
            if self._is_progress:
                self._piece_bytes = 0
            elif not self.transport.is_closing():
                self._start_head_timer()
                self._piece_bytes += len(data)  # the parser stores a head of any length
                if self._piece_bytes > MAX_HEAD_BYTES:
                    self.transport.abort()

        def on_message_begin(self) -> None:
            self._start_head_timer()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._is_progress, self._late_bytes = True, 0
            self._stop_head_timer()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._is_progress = True
            super().on_body(body)
            if self.cycle is not None and self.cycle.response_complete:
                self._start_head_timer()
                self._late_bytes += len(body)
                if self._late_bytes > MAX_LATE_BYTES:
                    self.transport.abort()

        def on_message_complete(self) -> None:
            self._is_progress = True
            self._stop_head_timer()
            super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stop_read_timer()
            self._read_timer = self.loop.call_later(seconds_to_read, self.transport.abort)

        def resume_writing(self) -> None:
            self._stop_read_timer()
            super().resume_writing()

        def _start_head_timer(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(seconds_to_ask, self._end_incomplete_head)

        def _end_incomplete_head(self) -> None:
            self._head_timer = None
            if self.cycle is not None and not self.cycle.response_complete:
                self._start_head_timer()  # an earlier request of this connection is still answered
            else:
                self.transport.abort()

        def _stop_head_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _stop_read_timer(self) -> None:
            if self._read_timer is not None:
                self._read_timer.cancel()
                self._read_timer = None

    return LimitedProtocol
