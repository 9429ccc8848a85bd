"""Whose certificates are believed: read once in a process, as reading them takes longer than most answers do."""

from __future__ import annotations

import functools
import ssl

import httpx2


@functools.cache
def trusted(*, environment: bool = True) -> ssl.SSLContext:
    """What a client's `verify` is given; 50 ms where each client reads its own.

    Args:
        environment: Whether `SSL_CERT_FILE` and `SSL_CERT_DIR` count.
    """
    return httpx2.create_ssl_context(trust_env=environment)
