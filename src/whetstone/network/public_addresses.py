"""Transport of an HTTP client that connects only to public IP addresses (protection against SSRF).

Note:
    The owner of a name can answer a second DNS lookup differently. The transport therefore resolves each name once and
    connects to exactly the addresses it checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import httpx2

from whetstone.network.certificates import ssl_context

_SERVED_BY_CLOUDS = frozenset({"168.63.129.16"})
"""Addresses that are public by number but belong to the host of a virtual machine (Azure)."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class NotPublicError(Exception):
    """A host name resolves to an address that is not public: this machine, its network or its hypervisor."""


def is_public(address: str) -> bool:
    """Return whether a numeric IP address is public.

    If the address embeds an IPv4 address in IPv6, the embedded address is checked.
    """
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and (ip in _NAT64 or int(ip) >> 32 == 0):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        ip = ip if inner is None else inner
    return ip.is_global and not ip.is_multicast and str(ip) not in _SERVED_BY_CLOUDS


def is_address(host: str) -> bool:
    """Return whether a host is a numeric IP address, with or without brackets, and not a name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class PublicTransport(httpx2.AsyncBaseTransport):
    """Transport of an `httpx` client that connects only to public IP addresses.

    Tools use it for servers that the model or a specification chooses.

    Args:
        is_allowed: Function that returns whether a host may also resolve to other addresses, because the recipe allows
            it.
    """

    def __init__(self, *, is_allowed: Callable[[str], bool] = lambda host: False) -> None:
        self._is_allowed = is_allowed
        # a connection is kept per address, and another name at this address needs a separate one
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(verify=ssl_context(environment=False), trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to a checked address of its host.

        The host name stays in the `Host` header and in TLS.

        Raises:
            NotPublicError: If the host resolves to an address that is not public.
            httpx2.ConnectError: If the host cannot be resolved, or no address accepts the connection.
        """
        host = request.url.host
        extensions = dict(request.extensions)
        if not is_address(host):
            extensions["sni_hostname"] = host
        connect_error: httpx2.ConnectError | None = None
        for address in await self._addresses(host, request.url.port or 0):
            addressed = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._inner.handle_async_request(addressed)
            except httpx2.ConnectError as error:
                connect_error = error
        raise connect_error or httpx2.ConnectError(f"{host} leads nowhere")

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            loop = asyncio.get_running_loop()
            resolved = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"{host}: {error}") from None
        addresses = list(dict.fromkeys(str(socket_address[0]) for *_, socket_address in resolved))
        private = [address for address in addresses if not is_public(address)]
        if private and not self._is_allowed(host):
            raise NotPublicError(f"{host} leads to {private[0]}, which is not a public address")
        return addresses

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()
