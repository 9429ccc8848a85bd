"""Server health check after a failed call: decides whether the server is down or the call is at fault.

Note:
    A model can crash a server with an argument, and most servers answer an invalid one with status 500. If each of
    these counted as an infrastructure failure, the episodes with the most unusual calls would be dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2

from whetstone.errors import InfrastructureError, ToolError
from whetstone.network import BoundedResponse

UNSAID = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, UnicodeError, ValueError, TypeError)
"""Exceptions of a request that cannot be sent, such as an invalid URL or a header with a line break.

They are the model's fault.
"""


async def classify_failure(
    failure: str, plain: Callable[[], Awaitable[BoundedResponse]], *, below: int = 500
) -> ToolError | InfrastructureError:
    """Decide after a failed call whether the model or the infrastructure is at fault, with a plain request.

    Args:
        failure: Message of the returned error.
        plain: Async function that sends a request without anything from the model.
        below: Upper bound (exclusive) of the HTTP status that counts as a healthy response.

    Returns:
        `ToolError` if the server responds to the plain request, otherwise `InfrastructureError`.
    """
    try:
        well = (await plain()).status < below
    except httpx2.HTTPError:
        well = False
    return ToolError(failure) if well else InfrastructureError(failure)
