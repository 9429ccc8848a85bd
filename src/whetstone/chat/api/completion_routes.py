"""Routes of the completion APIs after `/v1/`, and responses to rejected requests."""

from __future__ import annotations

import math
from collections.abc import Mapping

from whetstone.chat.api.anthropic_messages import MESSAGES
from whetstone.chat.api.openai_chat import CHAT
from whetstone.chat.api.openai_completions import COMPLETIONS
from whetstone.chat.api.openai_responses import RESPONSES
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.requests import RefusedError
from whetstone.network.http_layer import RouteError

ROUTES: dict[str, Wire] = {
    "chat/completions": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}
"""API format by path after `/v1/`."""
_SERVED = (*ROUTES, "models", "episodes", "live", "people")
_NOT_SERVED = (
    "embeddings", "audio", "images", "files", "uploads", "batches", "fine_tuning", "moderations", "assistants",
    "threads", "vector_stores", "realtime", "rerank", "score", "engines", "edits", "evals", "containers", "videos",
    "conversations",
)  # fmt: skip
"""First path segments of OpenAI's API, and of other servers, that no route supports."""


def api_for_request(path: str, headers: Mapping[str, str]) -> Wire:
    """Return the API format in which a rejection of a request is written: Anthropic's or OpenAI's.

    Args:
        path: Path of the request.
        headers: Headers of the request, with names in lower case.
    """
    of_messages = "/v1/messages" in path or "anthropic-version" in headers
    return MESSAGES if of_messages else CHAT


def build_rejection(
    method: str, path: str, headers: Mapping[str, str], error: Exception
) -> tuple[int, dict[str, object], dict[str, str]]:
    """Return the response to a rejected request, in the format of the client's API.

    An exception that is neither `RefusedError` nor `RouteError` is a fault of the server, and gives status 500.

    Args:
        method: HTTP method of the request.
        path: Path of the request.
        headers: Headers of the request, with names in lower case.
        error: Reason of the rejection.

    Returns:
        (HTTP status, JSON body, additional headers).
    """
    extra: dict[str, str] = {}
    if not isinstance(error, RefusedError):
        status, message = 500, f"{type(error).__name__}: the server failed"
        if isinstance(error, RouteError):
            status, message, extra = error.status, str(error), error.headers
        if status == 404:
            message = f"{method} {path[:80]}: {find_remedy(path)}"
        elif status == 405:
            message = f"{method} {path[:80]}: not allowed; use {extra.get('Allow', 'another method')}"
        error = RefusedError(message, status=status, code="not_found" if status == 404 else None)
    if error.after is not None:
        extra["retry-after"] = str(math.ceil(error.after))
    return error.status, api_for_request(path, headers).error(error), extra


def find_remedy(path: str) -> str:
    """Return the problem and the remedy for a path that no route supports.

    >>> find_remedy("/chat/completions")
    'not found; the API is under /v1: set base_url to http://HOST:PORT/v1 (Anthropic clients: http://HOST:PORT)'
    """
    segments = [segment for segment in path.split("/") if segment]
    if segments[:1] == ["episodes"]:
        segments = segments[2:]
    has_version = segments[:1] == ["v1"]
    rest = segments[has_version:]
    if rest[:1] == ["v1"]:
        return "not found; /v1 is twice in the path: Anthropic clients add it themselves, set base_url without it"
    if rest and rest[0] in _NOT_SERVED:
        return (
            f"this server has no {rest[0].replace('_', ' ')}: it samples text from one model, at "
            f"{', '.join(f'/v1/{name}' for name in ROUTES)}; use another server for {rest[0].replace('_', ' ')}"
        )
    if not has_version and any("/".join(rest).startswith(name) for name in _SERVED):
        return (
            "not found; the API is under /v1: set base_url to http://HOST:PORT/v1 (Anthropic clients: http://HOST:PORT)"
        )
    return "not found; GET /openapi.json lists the routes"


def model_entry(name: str) -> dict[str, object]:
    """Return the description of a model with the fields of OpenAI's and Anthropic's formats.

    A client reads its own.
    """
    at = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "type": "model", "owned_by": "whetstone", "display_name": name, **at}


def model_list(name: str) -> dict[str, object]:
    """Return the body of `GET /v1/models`: a list with the only model of the server."""
    ends = {"has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": [model_entry(name)], **ends}
