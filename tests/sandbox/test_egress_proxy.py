"""Lists of permitted hosts: a container reaches only listed hosts, through a proxy."""

import asyncio
import contextlib
import socket
from dataclasses import replace

import pytest

from support.containers import busybox_image, needs_podman
from whetstone.errors import SandboxError
from whetstone.sandbox import CONTAINER_LIMITS, ContainerOptions, ContainerPool, Ending
from whetstone.sandbox.containers.container_options import parse_container_options
from whetstone.sandbox.containers.egress_proxy import EgressProxy, parse_host, proxy_variables


def test_entry_is_a_host_with_the_ports_of_the_web_or_its_own():
    assert parse_host("PyPI.org") == ("pypi.org", (80, 443))
    assert parse_host("127.0.0.1:8000") == ("127.0.0.1", (8000,))


@pytest.mark.parametrize(
    "entry", ["https://pypi.org", "*.pypi.org", "pypi.org/simple", "a:70000", "a:", "", "a b", "-a"]
)
def test_other_entries_are_refused_with_the_form(entry):
    with pytest.raises(SandboxError, match=r"sandbox.network: .* is no host; write host or host:port") as raised:
        ContainerOptions(container="podman", image="a", network=(entry,))
    assert "\n" not in str(raised.value)


def test_list_of_a_recipe_is_an_option():
    options = parse_container_options({"container": "podman", "image": "a", "network": ["pypi.org", "b:1"]})
    assert options.allowed_hosts == ("pypi.org", "b:1")
    assert parse_container_options({"container": "podman", "image": "a", "network": "open"}).allowed_hosts == ()


def test_variables_name_the_proxy_except_for_the_container_itself():
    assert proxy_variables(["pypi.org"])["NO_PROXY"] == "localhost,127.0.0.1"
    assert proxy_variables(["127.0.0.1:80"])["no_proxy"] == "localhost"


class Hosts:
    """Servers of this machine: they record requests and answer `hello`."""

    def __init__(self):
        self.requests = []

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    async def start(self):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]


def exchange(*texts, listed="127.0.0.1:{port}"):
    """Return the requests that a server received, and the answers to texts that are sent to a proxy."""

    async def call():
        hosts = Hosts()
        server, port = await hosts.start()
        bound = socket.create_server(("127.0.0.1", 0))
        proxy = await EgressProxy([listed.format(port=port)]).serve_socket(bound)
        answers = []
        for text in texts:
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(text.replace("PORT", str(port)).encode())
            writer.write_eof()
            answers.append((await reader.read()).decode())
            writer.close()
        proxy.close()
        server.close()
        return hosts.requests, answers

    return asyncio.run(call())


def test_plain_request_reaches_its_host_without_the_headers_of_the_proxy():
    requests, answers = exchange(
        "GET http://127.0.0.1:PORT/a?b=1 HTTP/1.1\r\nHost: h\r\nProxy-Connection: x\r\n"
        "Connection: keep-alive\r\nA: 1\r\n\r\n"
    )
    assert answers[0].endswith("\r\n\r\nhello")
    assert requests == ["GET /a?b=1 HTTP/1.1\r\nHost: h\r\nA: 1\r\nConnection: close\r\n\r\n"]


def test_tunnel_passes_bytes():
    requests, answers = exchange("CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\nGET /in HTTP/1.1\r\n\r\n")
    assert answers[0].startswith("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert requests == ["GET /in HTTP/1.1\r\n\r\n"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n", "403"),
        ("CONNECT localhost:PORT HTTP/1.1\r\n\r\n", "403"),
        ("GET http://example.org/ HTTP/1.1\r\n\r\n", "403"),
        ("GET http://127.0.0.1:PORT@example.org/ HTTP/1.1\r\n\r\n", "403"),
        ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", "400"),
        ("GET ftp://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n", "400"),
        ("CONNECT 127.0.0.1:x HTTP/1.1\r\n\r\n", "400"),
        ("nonsense\r\n\r\n", "400"),
    ],
)
def test_other_requests_are_refused(text, status):
    requests, answers = exchange(text)
    assert requests == []
    assert answers[0].startswith(f"HTTP/1.1 {status} ")


def test_name_that_leads_to_this_machine_must_be_listed_as_an_address(monkeypatch):
    resolved = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]

    async def resolve(*_, **__):
        return resolved

    async def call():
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        proxy = EgressProxy(["rebound.example"])
        bound = socket.create_server(("127.0.0.1", 0))
        server = await proxy.serve_socket(bound)
        talking = socket.socket()
        talking.setblocking(False)
        await asyncio.get_running_loop().sock_connect(talking, bound.getsockname())
        reader, writer = await asyncio.open_connection(sock=talking)
        writer.write(b"CONNECT rebound.example:80 HTTP/1.1\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        server.close()
        return answer

    answer = asyncio.run(call())
    assert answer.startswith("HTTP/1.1 502 ")
    assert "leads to 127.0.0.1, which must be listed as an address" in answer


# ------------------------------------------------------------ podman


@needs_podman
@pytest.mark.slow
def test_container_reaches_only_the_listed_host_also_after_its_processes_were_ended():
    async def call():
        hosts = Hosts()
        server, port = await hosts.start()
        _, other = await hosts.start()
        options = ContainerOptions(container="podman", image=busybox_image(), network=(f"127.0.0.1:{port}",))
        pool = ContainerPool(options, limits=replace(CONTAINER_LIMITS, wall_seconds=5))
        session = pool.session()
        try:
            fetch = f"wget -q -O - http://127.0.0.1:{port}/a"
            outcomes = [
                await session.shell(command)
                for command in (
                    fetch,
                    f"wget -q -O - http://127.0.0.1:{other}/b",
                    f"unset http_proxy; {fetch}",
                    "ls /sys/class/net",
                    "sleep 100",
                    fetch,
                )
            ]
        finally:
            pool.close()
            server.close()
        return outcomes, hosts.requests

    (first, refused, direct, devices, slow, repeated), requests = asyncio.run(call())
    assert (first.output, repeated.output) == ("hello", "hello")
    assert "403" in refused.output
    assert refused.exit_code
    assert direct.exit_code
    assert devices.output == "lo\n"
    assert slow.ending is Ending.TIMEOUT
    assert [request.split()[1] for request in requests] == ["/a", "/a"]
