"""The published OpenAPI document describes the server: schemathesis sends requests that fit it and slightly invalid
ones."""

import asyncio
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from support.served_policy import Served, build_assembly, played
from whetstone.chat.api.completion_routes import ROUTES
from whetstone.optional_dependencies import get_package_version
from whetstone.serving import EpisodeRegistry, Server, build_serving_app

ANSWERED = ("/health", "/v1/models", "/v1/episodes", "/v1/completions")
"""Routes that accept every request of the document; messages also have an order, which no schema expresses."""


def document(name):
    """Return the document of a server without people and live learning, which needs no model."""
    return build_serving_app(Server(None, EpisodeRegistry(), name=name)).document


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def fetch_document(assembly):
    async def work(served):
        async with served.http() as http:
            return (await http.get("/openapi.json")).json()

    return played(assembly, work)


def test_document_lists_every_route_and_request_schemas(assembly):
    openapi = fetch_document(assembly)
    app = Served(assembly, engine=object()).app
    assert openapi == app.document
    assert openapi["info"] == {"title": "Whetstone: tiny", "version": get_package_version()}
    routed = {route.path.replace(":path", "") for route in app.routes}
    assert set(openapi["paths"]) == {path for path in routed if not path.startswith("/episodes/")}
    for path in openapi["paths"].values():
        for operation in path.values():
            for body in operation.get("requestBody", {}).get("content", {}).values():
                Draft202012Validator.check_schema(body["schema"])


@pytest.mark.parametrize("path", ROUTES)
def test_unpublished_field_is_refused_and_a_published_one_is_known(assembly, path):
    fields = ROUTES[path].request["properties"]

    async def work(served):
        async with served.http() as http:
            errors = {}
            for name in (*fields, "not_published"):
                short = dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), 1)
                payload = {"model": "tiny", "messages": 7, "input": "hi", "prompt": 7, **short, name: "tiny"}
                payload = {each: value for each, value in payload.items() if each in (*fields, name)}
                answer = await http.post(f"/v1/{path}", json=payload)
                errors[name] = (answer.json().get("error") or {"message": ""})["message"]
            return errors

    errors = played(assembly, work)
    assert "unknown field" in errors.pop("not_published")
    assert not any("unknown field" in message for message in errors.values())


OPERATIONS = [
    (path, method, mode)
    for path, methods in document("tiny")["paths"].items()
    for method in methods
    for mode in ("positive", *(("negative",) if method == "post" else ()))
]
"""Requests without a body have no invalid variants."""


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), OPERATIONS)
def test_schemathesis_finds_no_request_that_makes_the_server_fail(assembly, path, method, mode):
    """Send valid and slightly invalid requests; some of the valid ones succeed."""
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    served = Served(assembly)
    operation = schemathesis.openapi.from_dict(document("tiny"))[path][method]
    statuses = Counter()

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def tried(case):
        if isinstance(case.body, dict) and case.body.get("max_tokens", 1):
            case.body = {**case.body, "max_tokens": 2} if "messages" in path or "completions" in path else case.body
        sent = case.as_transport_kwargs(base_url="http://localhost")
        if "json" in sent:
            sent["content"] = json.dumps(sent.pop("json")).encode()
        if "data" in sent:
            sent["content"] = sent.pop("data")
        statuses[asyncio.run(send(sent)).status_code] += 1

    async def send(sent):
        async with served.http() as http:  # exceptions of the server are raised here
            return await http.request(**{name: value for name, value in sent.items() if value is not None})

    tried()
    assert not [status for status in statuses if status >= 500], statuses
    if mode == "positive" and path in ANSWERED:
        assert statuses[200], statuses
