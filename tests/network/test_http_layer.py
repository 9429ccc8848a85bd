"""Every server has the same system routes, metrics and access log."""

import logging
import re

import pytest

from support.http_layer import SERVERS, application_of, close, send
from whetstone.network.http_layer import ACCESS_LOG
from whetstone.optional_dependencies import get_package_version

pytest.importorskip("starlette", reason="pip install starlette uvicorn httptools")

LINE = re.compile(r'\S+ \S+ "[A-Z]+ (?P<path>[!-~]+)" (?P<status>\d{3}) \d+ms \d+B req_[0-9a-f]{32}')
SAMPLE = re.compile(r'([a-z_]+)(?:\{([a-z]+="(?:[^"\\\n]|\\.)*",?)+\})? (NaN|[-+]?Inf|-?[0-9.e+-]+)')
UNKNOWN = [("GET", f"/nowhere/{number}?api_key=hunter2", {}) for number in range(20)]


@pytest.fixture(scope="module", params=SERVERS)
def app(request, tmp_path_factory):
    application, closing = application_of(request.param, tmp_path_factory.mktemp(request.param))
    yield application
    close(closing)


def test_health_readiness_and_document_have_the_version(app):
    health, ready, document = send(app, *(("GET", path, {}) for path in ("/health", "/ready", "/openapi.json")))
    assert (health.status_code, health.json()["status"], health.json()["version"]) == (200, "ok", get_package_version())
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert document.json()["info"]["version"] == get_package_version()


def test_document_describes_every_route_and_method(app):
    (document,) = send(app, ("GET", "/openapi.json", {}))
    paths = document.json()["paths"]
    described = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    routed = {
        (re.sub(r":\w+", "", route.path), method)
        for route in app.routes
        if route.include_in_schema
        for method in route.methods - {"HEAD"}
    }
    assert described == routed
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def test_every_line_of_the_metrics_is_a_comment_or_a_sample(app):
    *_, metrics = send(app, *UNKNOWN, ("GET", "/health", {}), ("GET", "/metrics", {}))
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = metrics.text.splitlines()
    assert all(line.startswith(("# HELP whetstone_", "# TYPE whetstone_")) or SAMPLE.fullmatch(line) for line in lines)
    assert f'whetstone_build_info{{version="{get_package_version()}"}} 1' in lines


def test_a_public_parser_reads_the_metrics_and_a_histogram_adds_up(app):
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install prometheus_client")
    *_, metrics = send(app, *UNKNOWN, ("GET", "/metrics", {}))
    families = {family.name: family for family in parser.text_string_to_metric_families(metrics.text)}
    requests = families["whetstone_http_requests"].samples
    by_route = {}
    for sample in requests:
        by_route[sample.labels["route"]] = by_route.get(sample.labels["route"], 0) + sample.value
    histogram = families["whetstone_http_request_seconds"].samples
    for route, count in by_route.items():
        own = [sample for sample in histogram if sample.labels["route"] == route]
        (total,) = (sample.value for sample in own if sample.name.endswith("_count"))
        buckets = [sample.value for sample in own if sample.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == total == count


def test_labels_are_routes_so_that_their_number_is_bounded(app):
    *_, metrics = send(app, *UNKNOWN, ("GET", "/metrics", {}))
    assert 'route="none"' in metrics.text
    assert "nowhere" not in metrics.text


def test_each_request_is_one_line_without_query_header_or_body(app, caplog):
    caplog.set_level(logging.INFO, logger=ACCESS_LOG.name)
    odd = "/a%0d%0ab%22%20200/%ff?token=hunter2"
    secret = {"headers": {"authorization": "Bearer hunter2", "x-api-key": "hunter2"}, "content": b'{"key": "hunter2"}'}
    requests = [("GET", "/health", {}), ("POST", odd, secret), *UNKNOWN]
    answers = send(app, *requests)
    lines = [record.getMessage() for record in caplog.records if record.name == ACCESS_LOG.name]
    matches = [LINE.fullmatch(line) for line in lines]
    assert len(lines) == len(requests)
    assert all(matches), lines
    assert [int(match["status"]) for match in matches] == [answer.status_code for answer in answers]
    assert matches[1]["path"] == odd.partition("?")[0]
    assert "hunter2" not in "\n".join(lines)


def test_every_response_has_its_own_id(app):
    answers = send(app, ("GET", "/health", {}), *UNKNOWN[:3], ("PUT", "/health", {}))
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == len(answers)


HOSTS = [
    "localhost:8000x", "localhost:", "[::1]8000", "[::1]:8_0", "localhost:\u0664", "a@localhost", "[::1",
    "localhost:80:80", "[localhost]:80",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_a_malformed_host_is_rejected_by_every_server(app, host):
    path = next(route.path for route in app.routes if route.path in ("/v1/models", "/api/state", "/tasks/{index}"))
    headers = [(b"host", host.encode())]
    (answer,) = send(app, ("GET", path.replace("{index}", "0"), {"headers": headers}))
    assert answer.status_code == (200 if host == "localhost:" else 403)
