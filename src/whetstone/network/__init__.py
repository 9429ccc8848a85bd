"""HTTP clients for third-party servers (address check, limits on size and time), and the HTTP layer of servers."""

from whetstone.network.public_addresses import (
    NotPublicError as NotPublicError,
    PublicTransport as PublicTransport,
    is_public as is_public,
)
from whetstone.network.bounded_response import (
    MAX_RESPONSE_BYTES as MAX_RESPONSE_BYTES,
    BoundedResponse as BoundedResponse,
    fetch_bounded as fetch_bounded,
    limit_response_bytes as limit_response_bytes,
)
from whetstone.network.certificates import ssl_context as ssl_context
