"""HTTP proxy that connects only to listed hosts: the only way out of a container with `network: [host, …]`.

`CONNECT` (for TLS) and plain HTTP requests are supported. Names are resolved on this machine, once for each connection.

Note:
    The proxy sees only the name of the host. A listed host can serve other sites (domain fronting), or relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

PORT = 3128
"""Port of the proxy on the loopback interface of a container."""
_WEB_PORTS = (80, 443)
_MAX_HEAD_BYTES, _HEAD_SECONDS = 1 << 16, 30.0
_CONNECT_SECONDS = 30.0
_LINGER_SECONDS = 60.0
"""Maximum seconds that a host may send after its client has ended its output."""
_MAX_CONNECTIONS = 64
_CHUNK = 1 << 16
_ENTRY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:([1-9][0-9]{0,4}))?")


def parse_host(entry: str) -> tuple[str, tuple[int, ...]]:
    """Return host and ports of an entry `host` (ports 80 and 443) or `host:port`.

    Raises:
        ValueError: It is neither.
    """
    parsed = _ENTRY.fullmatch(entry.lower())
    port = int(parsed[4]) if parsed is not None and parsed[4] else 0
    if parsed is None or port > 65535:
        raise ValueError(f'"{entry}" is no host; write host or host:port, without scheme, path and wildcard')
    return parsed[1], (port,) if port else _WEB_PORTS


def proxy_variables(hosts: Sequence[str]) -> dict[str, str]:
    """Return the environment variables by which programs of a container find the proxy of the listed hosts."""
    address, listed = f"http://127.0.0.1:{PORT}", {parse_host(entry)[0] for entry in hosts}
    direct = ",".join(name for name in ("localhost", "127.0.0.1") if name not in listed)
    named = {"http_proxy": address, "https_proxy": address, "no_proxy": direct}
    return {**named, **{name.upper(): value for name, value in named.items()}}


class EgressProxy:
    """Proxy for the connections of one image.

    Args:
        hosts: Permitted hosts; see `parse_host`.

    Raises:
        ValueError: An entry is no host.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._allowed = {(host, port) for host, ports in map(parse_host, hosts) for port in ports}

    def is_allowed(self, host: str, port: int) -> bool:
        """Return whether a host and port are listed."""
        return (host.lower().removesuffix("."), port) in self._allowed

    async def serve_socket(self, listening: socket.socket) -> asyncio.Server:
        """Serve the connections of a listening socket until the returned server is closed."""
        count = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            count += 1
            try:
                if count > _MAX_CONNECTIONS:
                    _refuse(writer, "503 Service Unavailable", f"more than {_MAX_CONNECTIONS} connections")
                else:
                    await self._serve(reader, writer)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass  # the client is gone, or sent no request
            finally:
                count -= 1
                writer.close()

        return await asyncio.start_server(serve, sock=listening, limit=_MAX_HEAD_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        first, *fields = head[:-4].decode("latin-1").split("\r\n")
        try:
            method, target, _ = first.split(" ")
            url = urlsplit(f"//{target}" if method == "CONNECT" else target)
            host, port = url.hostname or "", url.port or 80
            if method != "CONNECT" and url.scheme != "http":
                raise ValueError("no URL with http")
        except ValueError as error:
            return _refuse(writer, "400 Bad Request", str(error))
        if not self.is_allowed(host, port):
            return _refuse(writer, "403 Forbidden", f"{host}:{port} is not in sandbox.network")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                upstream = await asyncio.open_connection(await _resolve(host, port), port)
        except (OSError, TimeoutError, ValueError) as error:
            return _refuse(writer, "502 Bad Gateway", f"{host}:{port}: {error}")
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:  # one request for each connection, so that no later one can name another host
                path = f"{url.path or '/'}{f'?{url.query}' if url.query else ''}"
                fields_sent = [
                    each for each in fields if not re.match(r"(?i)(proxy-[a-z-]+|connection|keep-alive):", each)
                ]
                upstream[1].write(
                    "\r\n".join([f"{method} {path} HTTP/1.1", *fields_sent, "Connection: close", "", ""]).encode(
                        "latin-1"
                    )
                )
            downloading = asyncio.ensure_future(_copy(upstream[0], writer))
            try:
                await _copy(reader, upstream[1])
                await asyncio.wait({downloading}, timeout=_LINGER_SECONDS)
            finally:
                downloading.cancel()
        finally:
            upstream[1].close()


async def _resolve(host: str, port: int) -> str:
    """Return the address of a host.

    Raises:
        ValueError: A name leads to this machine or to the metadata service of a cloud.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = str(addresses[0][4][0])
    ip = ipaddress.ip_address(address.partition("%")[0])
    is_special = ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast
    if is_special and host not in (address, "localhost"):
        raise ValueError(f"leads to {address}, which must be listed as an address")
    return address


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the end of input, then end the output."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _refuse(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    body = f"{reason}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
