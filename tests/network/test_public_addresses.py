"""Host names that resolve to addresses of an internal network are refused."""

import asyncio
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from support.tool_episodes import played
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.network import is_public
from whetstone.tools import Http, OpenApi, Toolset


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "168.63.129.16", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1",
        "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
        "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    ],
)  # fmt: skip
def test_internal_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_public(address):
    assert is_public(address)


class Secret(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.headers["Host"])
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"secret")

    def log_message(self, *_):
        pass


@pytest.fixture
def inside():
    """Run a server on the loopback address."""
    server = HTTPServer(("127.0.0.1", 0), Secret)
    server.asked = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def names(monkeypatch):
    """Map host names to addresses: each lookup returns the next entry of a name, the last one forever."""
    known = {}
    really = socket.getaddrinfo

    def looked_up(host, port, *arguments, **options):
        host = host.decode() if isinstance(host, bytes) else host
        if host not in known:
            return really(host, port, *arguments, **options)
        answers = known[host]
        now = answers.pop(0) if len(answers) > 1 else answers[0]
        return [info for address in now for info in really(address, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    return known


def call_http(http, url):
    return played(Toolset([http]), ("http", {"url": url}))[0]


@pytest.mark.parametrize(
    "leads", [["127.0.0.1"], ["::ffff:127.0.0.1"], ["0.0.0.0"], ["169.254.169.254"], ["1.1.1.1", "127.0.0.1"]]
)
def test_name_that_resolves_to_an_internal_address_is_refused(inside, names, leads):
    names["listed.example"] = [leads]
    host = f"listed.example:{inside.server_port}"
    answer = call_http(Http(allow=[host]), f"http://{host}/")
    assert answer.record.outcome == "refused_by_policy"
    assert "not a public address" in answer.text
    assert not inside.asked


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
def test_other_notation_of_an_address_is_a_name(inside, host):
    answer = call_http(Http(allow=[f"{host}:{inside.server_port}"]), f"http://{host}:{inside.server_port}/")
    assert "secret" not in answer.text
    assert not inside.asked


def test_redirect_to_an_internal_address_is_refused(inside, names):
    names["listed.example"] = [["127.0.0.1"]]
    port = inside.server_port

    class Away(Secret):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"http://listed.example:{port}/")
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Away)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    netloc = f"127.0.0.1:{server.server_port}"
    answer = call_http(Http(allow=[netloc, f"listed.example:{port}"]), f"http://{netloc}/")
    server.shutdown()
    server.server_close()
    assert answer.record.outcome == "refused_by_policy"
    assert not inside.asked


def test_connection_uses_the_address_that_was_checked(inside, names, monkeypatch):
    """Resolve a name to a public address for the check and to an internal one for the connection."""
    names["listed.example"] = [["192.88.99.1"], ["127.0.0.1"]]
    monkeypatch.setattr("whetstone.network.public_addresses.is_public", lambda address: not address.startswith("127."))
    host = f"listed.example:{inside.server_port}"
    answer = call_http(Http(allow=[host], timeout_seconds=1.0), f"http://{host}/")
    assert answer.record.outcome == "tool_error"
    assert not inside.asked


@pytest.mark.parametrize(
    ("listed", "options"), [("127.0.0.1", {}), ("localhost", {}), ("listed.example", {"private": True})]
)
def test_internal_hosts_that_the_recipe_lists_are_reached(inside, names, listed, options):
    names["listed.example"] = [["127.0.0.1"]]
    host = f"{listed}:{inside.server_port}"
    assert call_http(Http(allow=[host], **options), f"http://{host}/").text == "secret"
    assert inside.asked == [host]  # the `Host` header has the name


SPECIFICATION = """
openapi: 3.0.1
servers: [{{url: "{url}"}}]
paths:
  {path}: {{get: {{operationId: show}}}}
"""


def test_openapi_servers_must_be_public(inside, names, tmp_path):
    names["shop.example"] = [["127.0.0.1"]]
    file = tmp_path / "shop.yaml"
    for host in ("127.0.0.1", "shop.example"):
        url = f"http://{host}:{inside.server_port}"
        file.write_text(SPECIFICATION.format(url=url, path="/a"))
        ((operation,),) = ([*OpenApi(file=str(file)).operations.values()],)
        with pytest.raises(InfrastructureError, match="not a public address; if this is intended"):
            asyncio.run(OpenApi(file=str(file))._request(operation, {}))
        assert not inside.asked
    assert asyncio.run(OpenApi(file=str(file), url=url)._request(operation, {})).content[0].text == "secret"


@pytest.mark.parametrize("path", ["'@evil.example/a'", "'.evil.example/a'", "':80@evil.example/a'"])
def test_openapi_path_cannot_change_the_host(tmp_path, path):
    (tmp_path / "shop.yaml").write_text(SPECIFICATION.format(url="http://shop.example", path=path))
    with pytest.raises(RecipeError, match="a path must start with /"):
        OpenApi(file=str(tmp_path / "shop.yaml"), url="https://shop.example", headers={"X-Key": "secret"})
