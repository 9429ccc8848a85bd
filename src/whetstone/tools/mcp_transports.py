"""Transports to an MCP server: streamable HTTP, SSE, and the standard streams of a process.

Note:
    The SDK drops the status of an HTTP response. A session that the server no longer knows (status 404) and a proxy
    without a server (502) would look like errors of the call, so the status is added here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, TextIO
from urllib.parse import urlsplit

import httpx2

from whetstone.errors import summarize_exception
from whetstone.network import MAX_RESPONSE_BYTES, limit_response_bytes, ssl_context
from whetstone.tools.mcp_sdk import load_sdk

UNAVAILABLE = -31_500
"""JSON-RPC error code for a failed HTTP status; outside of the range that JSON-RPC reserves."""
_SESSION = "mcp-session-id"
_NO_SESSION = re.compile(r"session|not initiali[sz]ed", re.IGNORECASE)
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_MAX_ERROR_CHARACTERS = 1 << 20
_MAX_TEXT_CHARACTERS = 300


class HttpTransport:
    """MCP transport over HTTP: SSE if the path of the address ends with `/sse`, otherwise streamable HTTP.

    Args:
        url: Address of the server.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.lost = ""
        """Reason why the session is lost at the server; empty while it is valid."""
        self.requests = 0
        """Number of messages sent so far."""
        self._uses_sse = urlsplit(url).path.rstrip("/").endswith("/sse")
        self._incoming: Any = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Any:
        try:
            return await self._open()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _open(self) -> Any:
        if self._uses_sse:
            connecting = load_sdk().sse_client(self.url, httpx_client_factory=self._make_client)
            streams = await self._stack.enter_async_context(connecting)
            self._incoming = streams[0]
            return streams
        # no response is longer than it may be
        client = _Client(
            self, httpx2.Timeout(30.0, read=300.0), {"response": [limit_response_bytes(MAX_RESPONSE_BYTES)]}
        )
        await self._stack.enter_async_context(client)
        return await self._stack.enter_async_context(load_sdk().streamable_http_client(self.url, http_client=client))

    def _make_client(self, *, timeout: Any, **_: Any) -> _Client:
        return _Client(self, timeout)

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stack.__aexit__(*error)

    async def read_failure(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Convert a failed response to a JSON-RPC error if it is none, and record a lost session in `lost`."""
        text = (await response.aread()).decode(errors="replace")
        status = response.status_code
        message = f"status {status}: {text[:_MAX_TEXT_CHARACTERS]}"
        has_session = self._uses_sse or _SESSION in request.headers
        if has_session and (status in (404, 410) or (status == 400 and _NO_SESSION.search(text))):
            self.lost = message
        if self._uses_sse:  # the SDK stops sending, and the request would never be answered
            self.lost = self.lost or (message if status >= 500 else "")
            self._incoming.close()
        elif status >= 500 or not _is_rpc_error(text):
            data = {"status": status, "retry_after": response.headers.get("retry-after")}
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": UNAVAILABLE, "message": message, "data": data}}
            return httpx2.Response(status, json=error, request=request)
        return response


class _Client(httpx2.AsyncClient):
    """HTTP client that reports failed messages to its transport."""

    def __init__(self, owner: HttpTransport, timeout: Any, hooks: Mapping[str, list[Any]] | None = None) -> None:
        headers = {"Accept-Encoding": "identity"}
        super().__init__(timeout=timeout, headers=headers, verify=ssl_context(), event_hooks=hooks)
        self._owner = owner

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, count messages, and pass failed responses to the transport."""
        if request.method != "POST":
            return await super().send(request, **options)
        self._owner.requests += 1
        try:
            response = await super().send(request, **options)
        except _NEVER_SENT as error:
            self._owner.lost = summarize_exception(error)
            raise
        return response if response.status_code < 400 else await self._owner.read_failure(request, response)


class ProcessTransport:
    """MCP transport over the standard streams of a server process that it starts.

    Args:
        command: Command of the server, as a list of words.
        environment: Environment variables of the command.
        is_quiet: Whether to keep the standard error of the process instead of writing it to that of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, is_quiet: bool = False) -> None:
        first, *rest = command
        variables = {"PYTHONHASHSEED": "0", **environment}  # a set is listed in the same order by every process
        server = load_sdk().StdioServerParameters(command=first, args=rest, env=variables)
        self._errors = tempfile.TemporaryFile("w+", errors="replace") if is_quiet else None  # noqa: SIM115 - kept
        self._streams = load_sdk().stdio_client(server, errlog=self._errors or _standard_error())

    async def __aenter__(self) -> Any:
        return await self._streams.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        ended: bool | None = await self._streams.__aexit__(*error)
        return ended

    @property
    def last_error(self) -> str:
        """Last line that the process wrote to its standard error, if it was kept; otherwise empty."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read(_MAX_ERROR_CHARACTERS).strip().splitlines()
        return lines[-1].strip()[:_MAX_TEXT_CHARACTERS] if lines else ""


def _standard_error() -> TextIO:
    """Return the standard error of this process if a child can write to it.

    A notebook's has no descriptor.
    """
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return open(os.devnull, "w")
    return sys.stderr


def _is_rpc_error(text: str) -> bool:
    try:
        return "error" in json.loads(text) and '"jsonrpc"' in text
    except (ValueError, TypeError):
        return False
