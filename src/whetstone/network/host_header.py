"""Protection of servers without API keys against requests of other websites, by `Host`, `Origin` and `Sec-Fetch-Site`.

Note:
    A page of any site can make a browser send requests to a server on the same machine, also under a name of that site.
    A server without keys therefore requires a loopback name and rejects requests of other sites.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::[0-9]*)?")


def host_name(host: str) -> str:
    """Return the name in a `Host` header without its port; empty if the header is malformed.

    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("[::1]8000"), host_name("localhost:80x")
    ('localhost', '::1', '', '')
    """
    match = _HOST.fullmatch(host)
    return "" if match is None else match["address"] or match["name"]


def find_other_site(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the reason why a request may come from another website.

    The result is empty if it comes from this machine.

    Args:
        headers: Headers of the ASGI scope, with names in lower case.
    """
    values: dict[bytes, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value.decode("latin-1"))
    hosts = values.get(b"host", [])
    if len(hosts) != 1 or host_name(hosts[0]) not in LOOPBACK:
        return f"Host {', '.join(hosts)[:80] or 'is missing'}: use one of {', '.join(LOOPBACK)}"
    if any(origin != f"http://{hosts[0]}" for origin in values.get(b"origin", ())):
        return "Origin: the request comes from a page of another site"
    if any(site not in ("none", "same-origin") for site in values.get(b"sec-fetch-site", ())):
        return "Sec-Fetch-Site: the request comes from a page of another site"
    return ""
