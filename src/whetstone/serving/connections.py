"""Who holds a connection, and for how long? Nobody who says nothing, and nobody who does not read what he asked for.

Easy to get wrong: an application never sees a client that sends half a header, and cannot end one that takes its answer
a byte at a time. Whoever holds the socket can.
"""

from __future__ import annotations

import asyncio
import gc
import uuid
from typing import Any

from whetstone.errors import RecipeError
from whetstone.extras import install_command

SECONDS_TO_ASK = 30.0
"""From a connection to a whole head of a first request."""
SECONDS_TO_READ = 60.0
"""In which a client that is behind has to take something."""
MOST_OF_A_HEAD = 1 << 16
"""Bytes of an address and its headers, or of what comes behind a body, that come in pieces."""


def keep_what_is_loaded() -> None:
    """What is there now stays, and the collector of cycles looks through it no more: with a model and its libraries
    that is a fifth of a second, in the middle of everybody's answers."""
    gc.collect()
    gc.freeze()


def runner(app: Any, *, seconds_to_ask: float = SECONDS_TO_ASK, seconds_to_read: float = SECONDS_TO_READ) -> Any:
    """What serves an application.

    Raises:
        RecipeError: It is not installed.
    """
    try:
        import uvicorn
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        raise RecipeError(f"serving needs starlette, uvicorn and httptools: {install_command('serve')}") from None

    class Patient(HttpToolsProtocol):  # type: ignore[misc]
        """Waits so long and no longer, for so much and no more."""

        _waiting: asyncio.TimerHandle | None = None
        _moved, _kept = False, 0
        """Whether what came last said more than a piece of a head; bytes of such pieces behind one another."""

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
            self._moved = True
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._moved = True
            super().on_body(body)

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

    return uvicorn.Server(uvicorn.Config(app, log_level="warning", http=Patient))


class RequestIds:
    """Gives each answer an id, by which a client and a server's log speak of the same request."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        id = f"req_{uuid.uuid4().hex}".encode()

        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", id), (b"request-id", id)]
            await send(message)

        await self._app(scope, receive, named if scope["type"] == "http" else send)
