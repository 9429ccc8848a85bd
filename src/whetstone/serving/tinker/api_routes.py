"""Routes of the Tinker API, `/api/v1/…`, of a server; a call without a route is refused by name."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from whetstone.chat.api.request_fields import receive_body
from whetstone.chat.api.requests import RefusedError
from whetstone.serving.app import Server
from whetstone.serving.tinker.protobuf_format import decode_training_request
from whetstone.serving.tinker.tinker_service import TinkerService

_PROTOBUF = "application/x-protobuf"
_ORDERED = ("forward_backward", "optim_step", "save_weights", "load_weights", "save_weights_for_sampler")
"""Calls whose requests run in the order of their `seq_id`."""
_T = TypeVar("_T")


def tinker_routes(server: Server, service: TinkerService) -> list[Any]:
    """Return the Starlette routes of the Tinker API.

    Args:
        server: Server that authenticates requests and limits their size.
        service: State of the API.
    """
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    calls: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]]] = {
        "client/config": service.check_version,
        "client/dynamic_config": lambda body: {},
        "create_session": service.create_session,
        "session_heartbeat": lambda body: {"type": "session_heartbeat"},
        "telemetry": lambda body: {"status": "accepted"},
        "create_model": service.create_model,
        "get_info": service.describe_model,
        "optim_step": service.optim_step,
        "save_weights": service.save_weights,
        "load_weights": service.load_weights,
        "save_weights_for_sampler": service.save_sampler_weights,
        "weights_info": service.describe_weights,
        "create_sampling_session": service.create_sampler,
        "asample": service.sample_tokens,
    }

    async def read_body(request: Request, decode: Callable[[bytes], _T]) -> _T:
        server.authenticate_request(request)
        length = request.headers.get("content-length", "")
        limits: dict[str, Any] = {"max_bytes": server.max_bytes, "seconds": server.body_seconds}
        try:
            return decode(await receive_body(request.stream(), length=length, **limits))
        except RefusedError:  # too large, too slow or unreadable
            if request.url.path.rpartition("/")[2] in _ORDERED:
                await service.skip_lost_request()
            raise

    async def read_json(request: Request) -> dict[str, Any]:
        def decode(written: bytes) -> dict[str, Any]:
            try:
                body = json.loads(written or b"{}")
            except ValueError:
                body = None
            if not isinstance(body, dict):
                raise RefusedError(f"{request.url.path}: the body is no JSON object")
            return body

        return await read_body(request, decode)

    def answer_call(name: str) -> Any:
        async def answer(request: Request) -> JSONResponse:
            result = calls[name](await read_json(request))
            return JSONResponse(result if isinstance(result, dict) else await result)

        return answer

    async def forward_backward(request: Request) -> JSONResponse:
        return JSONResponse(service.forward_backward(await read_body(request, decode_training_request)))

    async def retrieve_future(request: Request) -> Response:
        body = await read_json(request)
        result = await service.retrieve_result(str(body.get("request_id")))
        if result is None:
            return JSONResponse({"type": "try_again", "queue_state": "active"}, 408)
        if isinstance(result, bytes):
            return Response(result, media_type=_PROTOBUF)
        return JSONResponse(result)

    async def sampler(request: Request) -> JSONResponse:
        server.authenticate_request(request)
        return JSONResponse(service.describe_sampler(request.path_params["id"]))

    async def capabilities(request: Request) -> JSONResponse:
        server.authenticate_request(request)
        return JSONResponse(service.describe_capabilities())

    async def health(request: Request) -> JSONResponse:
        server.authenticate_request(request)
        return JSONResponse({"status": "ok"})

    async def finish_session(request: Request) -> JSONResponse:
        server.authenticate_request(request)
        return JSONResponse({})

    async def refuse_call(request: Request) -> JSONResponse:
        server.authenticate_request(request)
        name = f"{request.method} {request.url.path}"[:120]
        raise RefusedError(
            f"{name} is not supported by this Tinker API; docs/guide/tinker.md lists the calls", status=404
        )

    posts = {**{name: answer_call(name) for name in calls}, "forward_backward": forward_backward}
    posts |= {"retrieve_future": retrieve_future, "sessions/{id}/finish": finish_session}
    gets = {"samplers/{id:path}": sampler, "get_server_capabilities": capabilities, "healthz": health}
    options: dict[str, Any] = {"include_in_schema": False}
    everything = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return [
        *(Route(f"/api/v1/{path}", endpoint, methods=["POST"], **options) for path, endpoint in posts.items()),
        *(Route(f"/api/v1/{path}", endpoint, **options) for path, endpoint in gets.items()),
        Route("/api/v1/{call:path}", refuse_call, methods=everything, **options),
    ]
