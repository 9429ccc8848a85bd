"""Which addresses may a name of the network lead to? Those of the world, unless a recipe wrote another itself.

Easy to get wrong: a name is looked up twice, once to be checked and once to connect, and whoever owns it may answer
differently the second time. So it is looked up once, and what was checked is what is connected to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import httpx2

from whetstone.network.certificates import trusted

_SERVED_BY_CLOUDS = frozenset({"168.63.129.16"})
"""Public by its number, and yet a machine's own host (Azure)."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class NotPublicError(Exception):
    """A name leads to an address that is not of the world: this machine, its network, or who runs it."""


def is_public(address: str) -> bool:
    """Whether a numeric address is one of the world; an address within another is judged by the inner one."""
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and (ip in _NAT64 or int(ip) >> 32 == 0):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        ip = ip if inner is None else inner
    return ip.is_global and not ip.is_multicast and str(ip) not in _SERVED_BY_CLOUDS


def is_address(host: str) -> bool:
    """Whether a host is written as a number, not as a name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class PublicTransport(httpx2.AsyncBaseTransport):
    """A client's way to the network that ends at public addresses.

    Args:
        also: Whether a host may lead elsewhere, because the recipe wrote it so.
    """

    def __init__(self, *, also: Callable[[str], bool] = lambda host: False) -> None:
        self._also = also
        # connections are kept by address: the next name at the same address is to have one of its own
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(verify=trusted(environment=False), trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Ask at an address that was checked; the server hears the name, and shows a certificate of it.

        Raises:
            NotPublicError: The name leads to an address that is not public.
            ConnectError: It leads nowhere.
        """
        host = request.url.host
        extensions = dict(request.extensions)
        if not is_address(host):
            extensions["sni_hostname"] = host
        failed: httpx2.ConnectError | None = None
        for address in await self._addresses(host, request.url.port or 0):
            there = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._inner.handle_async_request(there)
            except httpx2.ConnectError as error:
                failed = error
        raise failed or httpx2.ConnectError(f"{host} leads nowhere")

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"{host}: {error}") from None
        addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
        inside = [address for address in addresses if not is_public(address)]
        if inside and not self._also(host):
            raise NotPublicError(f"{host} leads to {inside[0]}, which is not a public address")
        return addresses

    async def aclose(self) -> None:
        """Let go of connections."""
        await self._inner.aclose()
