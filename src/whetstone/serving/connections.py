"""The server of an ASGI application, with limits for each connection."""

from __future__ import annotations

import gc
import importlib
from typing import Any

from whetstone.network.connections import SECONDS_TO_ASK, SECONDS_TO_READ, patient_protocol


def keep_what_is_loaded() -> None:
    """Exclude the present objects from the cyclic garbage collector.

    With a model and its libraries, a collection takes a fifth of a second, in which no request is answered.
    """
    gc.collect()
    gc.freeze()


def runner(app: Any, *, seconds_to_ask: float = SECONDS_TO_ASK, seconds_to_read: float = SECONDS_TO_READ) -> Any:
    """Return the uvicorn server of an application.

    Raises:
        RecipeError: It is not installed.
    """
    protocol = patient_protocol(seconds_to_ask=seconds_to_ask, seconds_to_read=seconds_to_read)
    uvicorn = importlib.import_module("uvicorn")
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", http=protocol))
