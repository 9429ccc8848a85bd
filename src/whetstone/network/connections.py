"""Who holds a connection of ours, and for how long? Nobody who says nothing, and nobody who does not read what he asked
for, nor who never ends what he says.

Easy to get wrong: an application never sees a client that sends half a header, and cannot end one that takes its answer
a byte at a time. Whoever holds the socket can.
"""

from __future__ import annotations

import asyncio
from typing import Any

from whetstone.errors import RecipeError
from whetstone.extras import install_command

SECONDS_TO_ASK = 30.0
"""From a connection to a whole head of a first request."""
SECONDS_TO_READ = 60.0
"""In which a client that is behind has to take something."""
MOST_OF_A_HEAD = 1 << 16
"""Bytes of an address and its headers, or of what comes behind a body, that come in pieces."""

MOST_UNHEARD = 1 << 20
"""Bytes of a body that may still come when the answer is told."""


def patient_protocol(
    *, seconds_to_ask: float = SECONDS_TO_ASK, seconds_to_read: float = SECONDS_TO_READ
) -> type[asyncio.Protocol]:
    """How uvicorn reads HTTP, with bounds: `uvicorn.Config(app, http=patient_protocol())`.

    Raises:
        RecipeError: It is not installed.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        raise RecipeError(f"serving needs starlette, uvicorn and httptools: {install_command('serve')}") from None

    class Patient(HttpToolsProtocol):  # type: ignore[misc]
        """Waits so long and no longer, for so much and no more."""

        _waiting: asyncio.TimerHandle | None = None
        _moved, _kept = False, 0
        """Whether what came last said more than a piece of a head; bytes of such pieces behind one another."""
        _unheard = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._waiting = self.loop.call_later(seconds_to_ask, self._end_unasked)

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait_no_more()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._moved = False
            super().data_received(data)
            self._kept = 0 if self._moved else self._kept + len(data)  # the parser keeps a head however long it gets
            if self._kept > MOST_OF_A_HEAD:
                self.transport.abort()

        def on_headers_complete(self) -> None:
            self._moved, self._unheard = True, 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._moved = True
            super().on_body(body)
            if self.cycle.response_complete:
                self._unheard += len(body)
                if self._unheard > MOST_UNHEARD:
                    self.transport.abort()

        def on_message_complete(self) -> None:
            self._moved = True
            super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait_no_more()
            self._waiting = self.loop.call_later(seconds_to_read, self.transport.abort)

        def resume_writing(self) -> None:
            self._wait_no_more()
            super().resume_writing()

        def _end_unasked(self) -> None:
            if self.cycle is None:
                self.transport.abort()

        def _wait_no_more(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Patient
