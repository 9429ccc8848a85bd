"""HTTP server (uvicorn) of an ASGI application, with time limits for each connection."""

from __future__ import annotations

import importlib
from typing import Any

from whetstone.network.idle_timeouts import SECONDS_TO_ASK, SECONDS_TO_READ, bounded_http_protocol


def build_server(app: Any, *, seconds_to_ask: float = SECONDS_TO_ASK, seconds_to_read: float = SECONDS_TO_READ) -> Any:
    """Build the uvicorn server of an ASGI application.

    Raises:
        RecipeError: uvicorn is not installed.
    """
    protocol = bounded_http_protocol(seconds_to_ask=seconds_to_ask, seconds_to_read=seconds_to_read)
    uvicorn = importlib.import_module("uvicorn")
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", http=protocol))
