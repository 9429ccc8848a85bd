"""TLS certificates of HTTP clients, loaded once per process because loading takes longer than most requests."""

from __future__ import annotations

import functools
import ssl

import httpx2


@functools.cache
def ssl_context(*, environment: bool = True) -> ssl.SSLContext:
    """Return the TLS context for a client's `verify`.

    Loading it takes 50 ms if each client loads its own.

    Args:
        environment: Whether `SSL_CERT_FILE` and `SSL_CERT_DIR` apply.
    """
    return httpx2.create_ssl_context(trust_env=environment)
