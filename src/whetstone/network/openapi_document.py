"""OpenAPI documents of our own servers, made from their routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_CONVERTOR = re.compile(r"\{(\w+):\w+\}")
_TEXT = {"type": "string", "minLength": 1}


def object_schema(required: Sequence[str] = (), /, **properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object, from the schemas of its properties."""
    return {"type": "object", "properties": properties, "required": list(required)}


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a route, as the document describes it."""

    summary: str
    body: Mapping[str, Any] | None = None
    """JSON schema of the request; None: it has no body."""
    path: Mapping[str, Any] = field(default_factory=dict)
    """By name, the schema of a path parameter that is not any text."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """By name, the schema of a query parameter."""
    required: Sequence[str] = ()
    """Query parameters that a request must have."""
    headers: Mapping[str, Any] = field(default_factory=dict)
    """By name, the schema of an optional header."""
    media: str = "application/json"
    """Content type of the response."""
    is_streamed: bool = False
    """Whether the response can be a stream of events."""
    status: int = 200


def describe_routes(
    title: str,
    routes: Sequence[Any],
    operations: Mapping[str, Operation],
    *,
    version: str,
    error: Mapping[str, Any],
    security: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the OpenAPI document of these routes.

    Args:
        title: Of the document.
        routes: Of Starlette.
        operations: By method and path, such as `GET /health`; every method of every route has one.
        version: Of the server.
        error: JSON schema of a rejected request.
        security: Security schemes by name, each of which is optional.

    Raises:
        KeyError: A route has no operation.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _CONVERTOR.sub(r"{\1}", route.path)
        for method in sorted(route.methods - {"HEAD"}):
            described = _describe(operations[f"{method} {path}"], method, path, error)
            paths.setdefault(path, {})[method.lower()] = described
    document: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": title, "version": version}, "paths": paths}
    if security:
        document["components"] = {"securitySchemes": dict(security)}
        document["security"] = [{}, *({name: []} for name in security)]
    return document


def _describe(operation: Operation, method: str, path: str, error: Mapping[str, Any]) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", path)
    parameters = [_parameter(name, "path", operation.path.get(name, _TEXT), True) for name in names]
    parameters += [
        _parameter(name, "query", schema, name in operation.required) for name, schema in operation.query.items()
    ]
    parameters += [_parameter(name, "header", schema, False) for name, schema in operation.headers.items()]
    content: dict[str, Any] = {operation.media: {"schema": {}}}
    if operation.is_streamed:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    rejected = {"description": "Rejected, with the reason.", "content": {"application/json": {"schema": error}}}
    described: dict[str, Any] = {
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", path)]),
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            str(operation.status): {"description": "The result.", "content": content},
            "4XX": rejected,
            "503": {**rejected, "description": "The server cannot do its work now."},
        },
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": operation.body}}}
    return described


def _parameter(name: str, place: str, schema: Mapping[str, Any], is_required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required, "schema": schema}
