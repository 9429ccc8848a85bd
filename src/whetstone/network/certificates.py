"""TLS context of HTTP clients with the trusted certificates, loaded once per process."""

from __future__ import annotations

import functools
import ssl

import httpx2


@functools.cache
def ssl_context(*, environment: bool = True) -> ssl.SSLContext:
    """Return the TLS context for the option `verify` of an HTTP client; cached.

    Loading the certificates takes 50 ms, which is longer than most requests.

    Args:
        environment: Whether the variables `SSL_CERT_FILE` and `SSL_CERT_DIR` apply.
    """
    return httpx2.create_ssl_context(trust_env=environment)
