"""Is this machine asked by a name of its own? A page from anywhere may have a browser ask under another."""

from __future__ import annotations

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def named(host: str) -> str:
    """The name in a `Host` header, without its port.

    >>> named("localhost:8000"), named("[::1]:8000")
    ('localhost', '::1')
    """
    return host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
