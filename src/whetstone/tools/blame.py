"""A server did not answer a call: was it down, or was it the call? It is asked something plain, and that tells.

Easy to get wrong: a model can bring a server to its knees with an argument, and most servers answer an odd one with
status 500. Were each of those taken for a broken server, the episodes with the oddest calls would never count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2

from whetstone.errors import InfrastructureError, ToolError
from whetstone.network import Answer

UNSAID = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, UnicodeError, ValueError, TypeError)
"""What cannot even be sent: a header with a line break in it, an address that is none. It is the model's always."""


async def blamed(
    failure: str, plain: Callable[[], Awaitable[Answer]], *, below: int = 500
) -> ToolError | InfrastructureError:
    """Whose failure it was: the model's where the server answers a plain question, infrastructure's where it does not.

    Args:
        failure: What happened, for either.
        plain: Asks the server something that no model has had a say in.
        below: Statuses of an answer to that.
    """
    try:
        well = (await plain()).status < below
    except httpx2.HTTPError:
        well = False
    return ToolError(failure) if well else InfrastructureError(failure)
