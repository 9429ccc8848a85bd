"""How is an application served? By a server that holds nobody's connection for ever, and names each answer."""

from __future__ import annotations

import gc
import importlib
import uuid
from typing import Any

from whetstone.network.connections import SECONDS_TO_ASK, SECONDS_TO_READ, patient_protocol


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
    protocol = patient_protocol(seconds_to_ask=seconds_to_ask, seconds_to_read=seconds_to_read)
    uvicorn = importlib.import_module("uvicorn")
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", http=protocol))


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
