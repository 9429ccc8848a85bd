"""Failures of a tool's backend: recognition, retries with backoff, and rate limits.

`find_backend_error` recognizes a connection error, a timeout, HTTP 429 and 5xx in the exception that a tool raised, by
the names of its classes and by its status, as requests, httpx, aiohttp, urllib, urllib3, botocore, gRPC, openai and
anthropic define them. None of these libraries is imported.

`Pace` spaces the calls of one tool, over all episodes of an event loop, and delays them after `retry-after`.

Note:
    An episode that ends by an infrastructure failure is excluded from all statistics, so a model must not be able to
    cause one. A server that the model chose (its host is in the arguments) is therefore not a backend, and a request
    that fails while the same tool responds to others is the failure of that call.
"""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from whetstone.errors import InfrastructureError, ToolError, summarize_exception
from whetstone.waiting import BACKEND, waiting_for

T = TypeVar("T")

MAX_PAUSE_SECONDS = 120.0
"""Maximum pause that a `retry-after` header can request, in seconds; longer ones are shortened."""
_PAUSE_SECONDS, _MAX_BACKOFF_SECONDS = 0.5, 30.0
"""Pause before the second attempt and maximum pause, in seconds; the pause doubles with each attempt."""
_RATE_LIMITED = 429
_CONNECTION = frozenset(
    {
        "APIConnectionError", "AutoReconnect", "ChunkedEncodingError", "ClientConnectionError", "ConnectionClosed",
        "ConnectionError", "HTTPClientError", "IncompleteRead", "MaxRetryError", "NetworkError", "NewConnectionError",
        "ProtocolError", "ProxyError", "Timeout", "TimeoutError", "TimeoutException", "gaierror",
    }
)  # fmt: skip
"""Names of exception classes (base classes included) for a failed connection or a timeout."""
_OF_ARGUMENTS = frozenset({"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"})
"""Names of exception classes for a request that cannot be sent as it is."""
_BROWSERS = ("playwright", "selenium")
"""Packages whose timeouts concern the content of a page, not the connection."""
_NOT_SENT = frozenset(
    {
        "ClientConnectorError", "ConnectError", "ConnectTimeout", "ConnectTimeoutError", "ConnectionRefusedError",
        "EndpointConnectionError", "NameResolutionError", "NewConnectionError", "PoolTimeout", "gaierror",
    }
)  # fmt: skip
"""Names of exception classes that are raised before a request is sent."""
_GRPC = {"UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": _RATE_LIMITED, "DEADLINE_EXCEEDED": 504}
_STATUS = ("status_code", "status", "code", "http_status")
_RESPONSES = ("response", "resp")
_CAUSES = ("__cause__", "reason", "os_error")


class BackendError(Exception):
    """Failure of the backend of a tool call; the call can be repeated.

    Built-in tools raise it, and `find_backend_error` creates it for the exceptions of other tools.

    Args:
        message: Type and text of the failure, in one line.
        status: HTTP status of the response; None: there was no response.
        retry_after: Value of the response's header `retry-after`.
        was_sent: Whether the backend can have executed the request.
        blame: Async function that decides after the last attempt whether the call or the backend is at fault; None:
            other calls of the tool decide.

    Attributes:
        retry_after: Seconds that the backend asks to wait; 0: none.
        was_sent: Whether the backend can have executed the request.
        is_rate_limited: Whether the backend rejected the request because of its rate limit (status 429).
        blame: See the argument; None for status 429.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: str | None = None,
        was_sent: bool = True,
        blame: Callable[[], Awaitable[ToolError | InfrastructureError]] | None = None,
    ) -> None:
        super().__init__(message)
        self.is_rate_limited = status == _RATE_LIMITED
        self.was_sent = was_sent and not self.is_rate_limited
        self.retry_after = parse_retry_after(retry_after)
        self.blame = None if self.is_rate_limited else blame


def is_retryable(status: int) -> bool:
    """Return whether an HTTP status is a failure of the backend: 429, or 500 to 599."""
    return status == _RATE_LIMITED or 500 <= status < 600


def is_sent(error: BaseException) -> bool:
    """Return whether a request that failed with this exception can have reached the backend."""
    return not any(_NOT_SENT & _class_names(each) for each in _chain(error))


def find_backend_error(error: BaseException, arguments: Mapping[str, Any]) -> BackendError | None:
    """Return the failure of a backend that an exception of a tool reports.

    The result is None if it reports none.

    Args:
        error: Exception that the tool's function raised.
        arguments: Arguments of the call. If they name the server, its failures are not those of a backend.
    """
    if isinstance(error, BackendError):
        return error
    if not isinstance(error, Exception) or isinstance(error, ToolError | InfrastructureError):
        return None
    status = _find_status(error)
    if not (_is_of_connection(error) if status is None else is_retryable(status)) or _is_chosen(error, arguments):
        return None
    was_sent = status is not None or is_sent(error)
    return BackendError(summarize_exception(error), status=status, retry_after=_find_header(error), was_sent=was_sent)


def parse_retry_after(header: str | None) -> float:
    """Return the seconds of a `retry-after` header, a number or a date.

    The result is at most 120, and 0 without a valid header.

    >>> parse_retry_after("2.5"), parse_retry_after("soon"), parse_retry_after("9999")
    (2.5, 0.0, 120.0)
    """
    try:
        seconds = float(header or 0)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(str(header)).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return min(max(0.0, seconds), MAX_PAUSE_SECONDS) if math.isfinite(seconds) else 0.0


class Pace:
    """Rate limiter for the calls of one tool, shared by all episodes of an event loop; see `get_pace`."""

    def __init__(self) -> None:
        self.num_answered = 0
        """Number of calls that succeeded so far."""
        self._next = 0.0

    async def wait(self, calls_per_second: float | None) -> None:
        """Wait until the next call may start.

        Args:
            calls_per_second: Rate limit; None: no limit.
        """
        now = asyncio.get_running_loop().time()
        start = max(now, self._next)
        self._next = start + (1 / calls_per_second if calls_per_second else 0.0)
        if start > now:
            with waiting_for(f"rate limit {BACKEND}"):
                await asyncio.sleep(start - now)

    def delay_calls(self, seconds: float) -> None:
        """Delay the start of all further calls by a number of seconds from now."""
        self._next = max(self._next, asyncio.get_running_loop().time() + seconds)


_paces: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Pace]] = WeakKeyDictionary()


def get_pace(tool: str) -> Pace:
    """Return the rate limiter of a tool in the running event loop."""
    return _paces.setdefault(asyncio.get_running_loop(), {}).setdefault(tool, Pace())


async def call_with_retries(
    call: Callable[[], Awaitable[T]],
    *,
    pace: Pace,
    calls_per_second: float | None,
    attempts: int,
    effects: str | None,
) -> T:
    """Call a tool until its backend responds, with exponential backoff.

    A tool that declares the effect `write` or `destructive` is called again only if the backend cannot have executed
    the request: the connection could not be made, or the status is 429.

    Args:
        call: Async function that makes one attempt.
        pace: Rate limiter of the tool.
        calls_per_second: Rate limit; None: no limit.
        attempts: Maximum number of attempts.
        effects: Declared effect of the tool; None: unknown.

    Raises:
        BackendError: If the last attempt fails.
    """

    for number in itertools.count():
        await pace.wait(calls_per_second)
        try:
            return await call()
        except BackendError as error:
            if error.retry_after:
                pace.delay_calls(error.retry_after)
            if number + 1 >= attempts or (error.was_sent and effects in ("write", "destructive")):
                raise
        backoff = min(_PAUSE_SECONDS * 2 ** min(number, 10), _MAX_BACKOFF_SECONDS)
        with waiting_for(f"retry {BACKEND}"):
            await asyncio.sleep(backoff + random.uniform(0, _PAUSE_SECONDS))
    raise AssertionError("unreachable")


def _class_names(error: BaseException) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def _is_of_connection(error: BaseException) -> bool:
    """Return whether an exception reports a failed connection or a timeout."""
    names = _class_names(error)
    if names & _OF_ARGUMENTS or type(error).__module__.partition(".")[0] in _BROWSERS:
        return False
    reason = _attribute(error, "reason") if "URLError" in names else None
    return bool(names & _CONNECTION) or (isinstance(reason, BaseException) and _is_of_connection(reason))


def _chain(error: BaseException, depth: int = 6) -> Iterator[BaseException]:
    """Yield an exception and the exceptions that it wraps, up to a nesting of `depth`."""
    yield error
    wrapped = [_attribute(error, name) for name in _CAUSES]
    for each in (*wrapped, *error.args[:1]):
        if depth and isinstance(each, BaseException):
            yield from _chain(each, depth - 1)


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute, or None if reading it raises: a property of a third-party exception can raise anything."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _find_status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception carries; None if it carries none."""
    response = next((r for name in _RESPONSES if (r := _attribute(error, name)) is not None), None)
    if isinstance(response, Mapping):  # botocore
        metadata = response.get("ResponseMetadata")
        status = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        return status if isinstance(status, int) else None
    for holder in (error, response):
        for name in _STATUS:
            value = _attribute(holder, name)
            if callable(value) and "grpc" in type(error).__module__:
                return _GRPC.get(str(_attribute(value(), "name")), 400)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
                return int(value)
    return None


def _find_header(error: BaseException) -> str | None:
    """Return the `retry-after` header of the response that an exception carries.

    The result is None if there is none.
    """
    for holder in (*(_attribute(error, name) for name in _RESPONSES), error):
        if isinstance(holder, Mapping):
            metadata = holder.get("ResponseMetadata")
            headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
        else:
            headers = _attribute(holder, "headers")
        items = _attribute(headers, "items")
        if callable(items):
            values = {str(name).lower(): str(value) for name, value in items()}
            if "retry-after" in values:
                return values["retry-after"]
    return None


def _is_chosen(error: BaseException, arguments: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a call name the server that failed."""
    text = str(dict(arguments)).lower()
    hosts = {host.lower() for each in _chain(error) for host in _collect_hosts(each)}
    if not hosts:
        return "://" in text
    return any(re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", text) for host in hosts)


def _collect_hosts(error: BaseException) -> Iterator[str]:
    """Yield the host names in the attributes of an exception."""
    holders = (error, _attribute(error, "request"), *(_attribute(error, name) for name in _RESPONSES))
    for holder in holders:
        host, url = _attribute(holder, "host"), _attribute(holder, "url")
        if isinstance(host, str) and host:
            yield host
        if url is not None:
            try:
                yield from filter(None, [urlsplit(str(url)).hostname])
            except ValueError:
                continue
