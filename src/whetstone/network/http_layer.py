"""HTTP layer of every server: system routes, request ids, access log and metrics.

    whetstone serve, live          serving/app.py
    whetstone view                 viewer/viewer_app.py
    whetstone environments serve   environments/remote/environment_server.py

**System routes.** `GET /health` (the process responds), `GET /ready` (it can do its work), `GET /metrics` (Prometheus
text format) and `GET /openapi.json`.

**Access log.** One line for each request, at the level INFO of the logger `whetstone.access`: client, name of the key,
method, path, status, time, bytes, request id. A line has no query, no header and no body.

Note:
    Labels of metrics have a bounded number of values: the path of the route, not of the request.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote

from whetstone.errors import RecipeError
from whetstone.network.openapi_document import Operation, describe_routes
from whetstone.optional_dependencies import get_package_version, install_command

ACCESS_LOG = logging.getLogger("whetstone.access")
KEY_NAME = "whetstone.key"
"""Entry of the ASGI scope with the name of the API key of a request; written to the access log."""

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histogram of request durations, in seconds."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MAX_PATH = 200
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SYSTEM_OPERATIONS = {
    "GET /health": Operation("Whether the process answers, and its version."),
    "GET /ready": Operation("Whether the server can do its work; 503 with the reason if not."),
    "GET /metrics": Operation("Metrics in the text format of Prometheus.", media="text/plain"),
    "GET /openapi.json": Operation("This document."),
}


class RouteError(Exception):
    """Error of a request that no route handles, such as status 404 or 405.

    It is `HTTPException` of Starlette without an import of Starlette.

    Args:
        status: HTTP status of the response.
        detail: Message, such as the phrase of the status.
        headers: Additional headers of the response, such as `Allow`.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})


class Family(NamedTuple):
    """Prometheus metric with its samples."""

    name: str
    """Full name of the metric."""
    kind: str
    """Type of the metric: `counter`, `gauge` or `histogram`."""
    description: str
    """Help text of the metric."""
    samples: Sequence[tuple[str, Mapping[str, str], float]]
    """Samples as (suffix of the name, labels, value)."""


def make_family(name: str, kind: str, description: str, value: float, **labels: str) -> Family:
    """Return a metric with one sample, named `whetstone_{name}`.

    Args:
        name: Name without the prefix.
        kind: `counter` or `gauge`.
        description: Help text.
        value: Value of the sample.
        labels: Labels of the sample.
    """
    return Family(f"whetstone_{name}", kind, description, [("", labels, value)])


@dataclass(slots=True)
class Service:
    """Functions and descriptions that a server passes to its HTTP layer."""

    title: str
    """Title of the OpenAPI document."""
    refuse: Callable[[Any, Exception], Any]
    """Function (request, exception) → error response."""
    check: Callable[[Any], object]
    """Function that raises an exception if a request has no permission."""
    find_obstacle: Callable[[], Awaitable[str]]
    """Async function that returns why the server cannot do its work now; empty if it can. Used by `/ready`."""
    health: Callable[[], Mapping[str, Any]] = dict
    """Function that returns additional entries of `/health`."""
    check_health: Callable[[Any], object] = lambda request: None
    """Same as `check`, for `/health` and `/ready`; allows every request by default."""
    families: Callable[[], Iterable[Family]] = list
    """Function that returns the server's metrics, in addition to those of the HTTP layer."""
    operations: Mapping[str, Operation] = field(default_factory=dict)
    """Description of each route, by method and path, such as `GET /v1/models`."""
    error: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """JSON Schema of an error response."""
    security: Mapping[str, Any] = field(default_factory=dict)
    """Security schemes of the OpenAPI document by name."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that are added to every response that does not set them."""


class HttpLayer:
    """ASGI application that adds a request id, a log line and metrics to every request of another application.

    `http_application` creates it.

    Args:
        app: Wrapped ASGI application.
        routes: Starlette routes of the application, for the labels of metrics and the OpenAPI document.
        service: Functions and descriptions of the server.
    """

    def __init__(self, app: Any, routes: Sequence[Any], service: Service) -> None:
        self.app, self.routes, self.service = app, routes, service
        self.document = describe_routes(
            service.title,
            [route for route in routes if route.include_in_schema],
            {**_SYSTEM_OPERATIONS, **service.operations},
            version=get_package_version(),
            error=service.error,
            security=service.security,
        )
        """OpenAPI document of the server."""
        self._in_flight = 0
        self._requests: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._durations: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * (len(_BUCKETS) + 2))
        """By route: number of requests up to each bound, total number of requests, total time in seconds."""

    @cached_property
    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), value.encode()) for name, value in self.service.headers.items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request, as the ASGI specification defines it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        id, began, status, size = f"req_{uuid.uuid4().hex}", time.perf_counter(), 500, 0

        async def observe(message: Any) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
                present = {name for name, _ in headers}
                headers += [header for header in self._headers if header[0] not in present]
                headers += [(b"x-request-id", id.encode()), (b"request-id", id.encode())]
                message = {**message, "headers": headers}
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        self._in_flight += 1
        try:
            await self.app(scope, receive, observe)
        finally:
            self._in_flight -= 1
            seconds = time.perf_counter() - began
            self._count(scope, status, seconds)
            if ACCESS_LOG.isEnabledFor(logging.INFO):
                ACCESS_LOG.info(_log_line(scope, status, seconds, size, id))

    def metrics(self) -> str:
        """Return the metrics of the layer and of the service in the text format of Prometheus."""
        requests = [
            ("", {"method": method, "route": route, "status": status}, count)
            for (method, route, status), count in sorted(self._requests.items())
        ]
        durations: list[tuple[str, Mapping[str, str], float]] = []
        for route, (*counts, total, seconds) in sorted(self._durations.items()):
            bounds = [*map(_number, _BUCKETS), "+Inf"]
            for bound, count in zip(bounds, (*counts, total), strict=True):
                durations.append(("_bucket", {"route": route, "le": bound}, count))
            durations += [("_sum", {"route": route}, seconds), ("_count", {"route": route}, total)]
        families = [
            make_family("build_info", "gauge", "Version of Whetstone.", 1, version=get_package_version()),
            make_family("http_requests_in_flight", "gauge", "Requests in flight.", self._in_flight),
            Family("whetstone_http_requests_total", "counter", "Answered requests.", requests),
            Family("whetstone_http_request_seconds", "histogram", "Time to the end of the response.", durations),
            *self.service.families(),
        ]
        return "".join(map(_family_text, families))

    def _count(self, scope: Any, status: int, seconds: float) -> None:
        route = self._route(scope)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests[method, route, str(status)] += 1
        durations = self._durations[route]
        for place, bound in enumerate(_BUCKETS):
            durations[place] += seconds <= bound
        durations[-2] += 1
        durations[-1] += seconds

    def _route(self, scope: Any) -> str:
        matches = [(route.matches(scope)[0].value, route.path) for route in self.routes]
        value, path = max(matches, key=lambda match: match[0])
        return str(path) if value else "none"


def http_application(
    routes: Sequence[Any],
    service: Service,
    *,
    errors: Sequence[type[Exception]] = (),
    lifespan: Any = None,
    middleware: Sequence[Any] = (),
) -> HttpLayer:
    """Return the ASGI application of a server: its routes, the system routes, error handling and the HTTP layer.

    Args:
        routes: Starlette routes of the server; system routes are added.
        service: Functions and descriptions of the server.
        errors: Exception classes that become error responses; any other exception is also raised to the ASGI server.
        lifespan: Starlette lifespan function.
        middleware: Starlette middleware, inside of the HTTP layer.

    Raises:
        RecipeError: If Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    async def health(request: Request) -> JSONResponse:
        service.check_health(request)
        return JSONResponse({"status": "ok", "version": get_package_version(), **service.health()})

    async def ready(request: Request) -> JSONResponse:
        service.check_health(request)
        reason = await service.find_obstacle()
        if reason:
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        service.check(request)
        return Response(layer.metrics(), headers={"content-type": _METRICS_TYPE})

    async def document(request: Request) -> JSONResponse:
        service.check(request)
        return JSONResponse(layer.document)

    async def refuse(request: Request, error: Exception) -> Any:
        if isinstance(error, ClientDisconnect):
            error = RouteError(499, "the client closed the request")
        elif isinstance(error, HTTPException):
            error = RouteError(error.status_code, str(error.detail), error.headers)
        return service.refuse(request, error)

    routes = [
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/openapi.json", document),
        *routes,
    ]
    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, ClientDisconnect, *errors, Exception), refuse)
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=list(middleware))
    layer = HttpLayer(app, routes, service)
    return layer


def _log_line(scope: Any, status: int, seconds: float, size: int, id: str) -> str:
    client = (scope.get("client") or ("-",))[0]
    key = quote(str(scope.get(KEY_NAME) or "-"), safe="-_.@+")
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    path = quote(path.partition(b"?")[0][:_MAX_PATH], safe="/%-_.~:@!$&'()*+,;=")
    return f'{client} {key} "{scope["method"]} {path}" {status} {seconds * 1000:.0f}ms {size}B {id}'


def _family_text(family: Family) -> str:
    lines = [f"# HELP {family.name} {family.description}", f"# TYPE {family.name} {family.kind}"]
    for suffix, labels, value in family.samples:
        pairs = ",".join(f'{name}="{_escape(label)}"' for name, label in labels.items())
        lines.append(f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
