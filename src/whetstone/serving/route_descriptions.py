"""Descriptions of the routes of `whetstone serve` and `live`, for their OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat.api.anthropic_messages import COUNTED
from whetstone.chat.api.completion_routes import ROUTES
from whetstone.network.openapi_document import Operation, object_schema

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}
"""JSON schema of a rejected request."""
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""Security schemes."""

_TEXT = {"type": "string", "minLength": 1}
_HEADERS = {
    "x-whetstone-episode": {"type": "string", "pattern": "^[!-.0-~]{1,200}$"},
    "x-whetstone-task": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    "x-whetstone-seed": {"type": "string", "pattern": "^[0-9]{1,18}$"},
}
_NUMBER = {"type": "number"}
_NULL = {"type": "null"}


_WORTH = {
    **object_schema(
        reward={"anyOf": [_NUMBER, _NULL]},
        turn={"anyOf": [{"type": "integer", "minimum": 0}, _NULL]},
        turns={
            "anyOf": [
                {"type": "object", "additionalProperties": _NUMBER, "propertyNames": {"pattern": "^[0-9]{1,9}$"}},
                _NULL,
            ]
        },
        final={"type": "boolean"},
    ),
    "additionalProperties": False,
}
_TASK = {
    **object_schema(id=_TEXT, prompt={"type": "string"}, private={"type": "object"}),
    "additionalProperties": False,
}
_BEGUN = {
    **object_schema(
        id={"anyOf": [{"type": "string", "pattern": "^[!-.0-~]{1,200}$"}, _NULL]},
        task={"anyOf": [{"type": "string", "pattern": "^[!-~]{0,200}$"}, _TASK, _NULL]},
        seed={"anyOf": [{"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, _NULL]},
    ),
    "additionalProperties": False,
}
_BY = {"type": "string", "maxLength": 80}
_SAID = object_schema(
    content={"type": "string"},
    tool_calls={
        "type": "array",
        "items": object_schema(
            ("function",),
            id={"type": "string"},
            type={"const": "function"},
            function=object_schema(("name", "arguments"), name=_TEXT, arguments={"type": "string"}),
        ),
    },
)
_ANSWER = {"type": "integer", "minimum": 0}
_MESSAGES = {
    "type": "array",
    "items": object_schema(
        ("role", "content"), role={"enum": ["user", "assistant", "system"]}, content={"type": "string"}
    ),
}

_OWN = {
    "GET /v1/models": Operation("The model that is served."),
    "GET /v1/models/{model}": Operation("One model."),
    "POST /v1/messages/count_tokens": Operation("Number of tokens of messages.", body=COUNTED),
    "GET /v1/responses/{id}": Operation("A stored response."),
    "DELETE /v1/responses/{id}": Operation("Delete a stored response."),
    "GET /v1/episodes": Operation("Open episodes."),
    "POST /v1/episodes": Operation("Open an episode.", body=_BEGUN),
    "GET /v1/episodes/{id}": Operation("An open episode."),
    "DELETE /v1/episodes/{id}": Operation("Delete an open episode."),
    "POST /v1/episodes/{id}/reward": Operation("Reward an episode or its turns.", body=_WORTH),
}
PEOPLE = {
    "GET /": Operation("The human-in-the-loop page.", media="text/html"),
    "GET /page/{name}": Operation("A file of the page.", media="text/css"),
    "GET /v1/episodes/{id}/conversation": Operation("The messages of an episode."),
    "POST /v1/episodes/{id}/take-over": Operation(
        "Replace an answer.", body=object_schema(("message",), message=_SAID, answer=_ANSWER, by=_BY)
    ),
    "POST /v1/episodes/{id}/watch": Operation(
        "Hold the answers of an episode.",
        body=object_schema(by=_BY, seconds={"type": "number", "minimum": 0, "maximum": 3600}),
    ),
    "POST /v1/episodes/{id}/rate": Operation(
        "Rate an answer.", body=object_schema(answer=_ANSWER, rating=_NUMBER, note={"type": "string"}, by=_BY)
    ),
    "GET /v1/people/seats": Operation("Open seats."),
    "POST /v1/people/seats": Operation(
        "Open a seat.",
        body=object_schema(
            about={"type": "string"}, seconds={"type": "number", "exclusiveMinimum": 0, "maximum": 86_400}
        ),
    ),
    "POST /v1/people/claim": Operation("Claim the next seat.", body=object_schema(by=_BY)),
    "GET /v1/people/seats/{id}": Operation("A seat."),
    "DELETE /v1/people/seats/{id}": Operation("Close a seat."),
    "POST /v1/people/seats/{id}/turns": Operation(
        "Ask for the words of a turn.", body=object_schema(("turn", "messages"), turn=_ANSWER, messages=_MESSAGES)
    ),
    "GET /v1/people/seats/{id}/turns/{turn}": Operation(
        "The words of a turn.",
        path={"turn": {"type": "integer", "minimum": 0}},
        query={"wait": {"type": "number", "minimum": 0, "maximum": 30}},
    ),
    "POST /v1/people/seats/{id}/claim": Operation("Claim this seat.", body=object_schema(by=_BY)),
    "POST /v1/people/seats/{id}/release": Operation("Release a seat.", body=object_schema(by=_BY)),
    "POST /v1/people/seats/{id}/say": Operation(
        "Answer in a seat.",
        body=object_schema(
            by=_BY, content={"type": "string"}, ended={"type": "boolean"}, accept={"const": True}, message=_SAID
        ),
    ),
}
"""Routes of `people_routes`."""
LIVE = {
    "GET /v1/live": Operation("State of live learning, and the turns of the next update."),
    "POST /v1/live/pause": Operation("Pause learning."),
    "POST /v1/live/resume": Operation("Resume learning."),
    "GET /v1/live/episodes": Operation("Episodes with stored turns."),
    "GET /v1/live/episodes/{id}": Operation("Stored turns of an episode."),
    "DELETE /v1/live/episodes/{id}": Operation("Delete an episode that was not trained."),
    "POST /v1/live/episodes/{id}/approve": Operation("Allow training on an episode."),
    "POST /v1/live/episodes/{id}/reject": Operation("Forbid training on an episode."),
    "POST /v1/live/episodes/{id}/unlearn": Operation("Remove an episode from the weights."),
}
"""Routes of `live_routes`."""


def describe_operations(model: str) -> dict[str, Operation]:
    """Build the OpenAPI descriptions of the routes of a server, by method and path.

    Args:
        model: Name of the served model.
    """
    operations = {**_OWN, **PEOPLE, **LIVE}
    for path, wire in ROUTES.items():
        body = _with_model(wire.request, model)
        operations[f"POST /v1/{path}"] = Operation("Sample answers.", body=body, headers=_HEADERS, is_streamed=True)
    return operations


def _with_model(request: Mapping[str, Any], model: str) -> dict[str, Any]:
    return {**request, "properties": {**request["properties"], "model": {"const": model}}}
