"""OpenAPI documents of Whetstone's HTTP servers, generated from their routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_CONVERTOR = re.compile(r"\{(\w+):\w+\}")
_TEXT = {"type": "string", "minLength": 1}


def object_schema(required: Sequence[str] = (), /, **properties: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object from the schemas of its properties.

    Args:
        required: Names of required properties.
        properties: JSON Schema of each property by name.
    """
    return {"type": "object", "properties": properties, "required": list(required)}


@dataclass(frozen=True, slots=True)
class Operation:
    """Description of one HTTP method of a route in an OpenAPI document."""

    summary: str
    """Sentence that describes the operation."""
    body: Mapping[str, Any] | None = None
    """JSON Schema of the request body; None: the request has no body."""
    path: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of path parameters by name; a parameter without an entry is any nonempty text."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of query parameters by name."""
    required: Sequence[str] = ()
    """Names of query parameters that a request must have."""
    headers: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of optional request headers by name."""
    media: str = "application/json"
    """Content type of the response."""
    is_streamed: bool = False
    """Whether the response can be a stream of server-sent events."""
    status: int = 200
    """HTTP status of a successful response."""


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
        title: Title of the document.
        routes: Starlette routes.
        operations: Descriptions by method and path, such as `GET /health`; every method of every route must have one.
        version: Version of the server.
        error: JSON Schema of the response to a rejected request.
        security: Security schemes by name; each is optional.

    Raises:
        KeyError: If a route has no description.
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
