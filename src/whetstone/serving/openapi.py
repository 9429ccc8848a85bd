"""What does the server publish of itself? Its routes and the shapes of requests, as OpenAPI has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat.api.anthropic_messages import COUNTED
from whetstone.chat.api.routes import ROUTES
from whetstone.extras import release

_ERROR = {
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
_REFUSED = {
    "description": "Refused, with why and what would be right.",
    "content": {"application/json": {"schema": _ERROR}},
}
_JSON = {"application/json": {"schema": {"type": "object"}}}
_TOLD: dict[str, Any] = {"description": "What was asked for.", "content": _JSON}
_STREAMED = {**_TOLD, "content": {**_JSON, "text/event-stream": {"schema": {"type": "string"}}}}
_TEXT = {"type": "string", "minLength": 1}
_HEADERS = [
    {"name": name, "in": "header", "required": False, "schema": {"type": "string", "pattern": pattern}}
    for name, pattern in (
        ("x-whetstone-episode", "^[!-.0-~]{1,200}$"),
        ("x-whetstone-task", "^[!-~]{1,200}$"),
        ("x-whetstone-seed", "^[0-9]{1,18}$"),
    )
]
_NUMBER = {"type": "number"}
_WORTH = {
    "type": "object",
    "properties": {
        "reward": {"anyOf": [_NUMBER, {"type": "null"}]},
        "turn": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]},
        "turns": {"anyOf": [{"type": "object", "additionalProperties": _NUMBER}, {"type": "null"}]},
        "final": {"type": "boolean"},
    },
    "additionalProperties": False,
}
_BEGUN = {
    "type": "object",
    "properties": {
        "id": {"anyOf": [{"type": "string", "pattern": "^[!-.0-~]{1,200}$"}, {"type": "null"}]},
        "task": {
            "anyOf": [
                {"type": "string", "pattern": "^[!-~]{0,200}$"},
                {
                    "type": "object",
                    "properties": {"id": _TEXT, "prompt": {"type": "string"}, "private": {"type": "object"}},
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        },
        "seed": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, {"type": "null"}]},
    },
    "additionalProperties": False,
}


def document(model: str) -> dict[str, Any]:
    """The routes of a server of this model."""
    paths: dict[str, Any] = {
        "/health": {"get": _of("health")},
        "/v1/models": {"get": _of("models")},
        "/v1/models/{model}": {"get": _of("model", "model")},
        "/v1/messages/count_tokens": {"post": _of("count_tokens", asks=COUNTED)},
        "/v1/responses/{id}": {"get": _of("response", "id"), "delete": _of("forget_response", "id")},
        "/v1/episodes": {"get": _of("episodes"), "post": _of("begin_episode", asks=_BEGUN)},
        "/v1/episodes/{id}": {"get": _of("episode", "id"), "delete": _of("forget_episode", "id")},
        "/v1/episodes/{id}/reward": {"post": _of("reward", "id", asks=_WORTH)},
    }
    for path, wire in ROUTES.items():
        name = path.replace("/", "_")
        paths[f"/v1/{path}"] = {"post": _of(name, asks=_named(wire.request, model), streams=True)}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Whetstone: {model}", "version": release()},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _named(request: Mapping[str, Any], model: str) -> dict[str, Any]:
    return {**request, "properties": {**request["properties"], "model": {"const": model}}}


def _of(name: str, *parameters: str, asks: Mapping[str, Any] | None = None, streams: bool = False) -> dict[str, Any]:
    in_path = [{"name": each, "in": "path", "required": True, "schema": _TEXT} for each in parameters]
    told: dict[str, Any] = {
        "operationId": name,
        "parameters": [*in_path, *(_HEADERS if streams else ())],
        "responses": {"200": _STREAMED if streams else _TOLD, "4XX": _REFUSED, "503": _REFUSED},
    }
    if asks is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": asks}}}
    return told
