"""What the server publishes of itself is what it does: schemathesis sends whatever fits it, and what just does not."""

import asyncio
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from tests_served import Served, made, played
from whetstone.chat.api.routes import ROUTES
from whetstone.extras import release
from whetstone.serving import Episodes, Server, application

ANSWERED = ("/health", "/v1/models", "/v1/episodes", "/v1/completions")
"""Where what fits the document is answered; messages must be in an order, too, which no schema says."""


def document(name):
    """The document of a server without people and live learning, which needs no model."""
    return application(Server(None, Episodes(), name=name)).document


@pytest.fixture(scope="module")
def assembly():
    return made()


def shown(assembly):
    async def work(served):
        async with served.http() as http:
            return (await http.get("/openapi.json")).json()

    return played(assembly, work)


def test_the_document_names_every_route_and_each_request_is_a_schema(assembly):
    told = shown(assembly)
    app = Served(assembly, engine=object()).app
    assert told == app.document
    assert told["info"] == {"title": "Whetstone: tiny", "version": release()}
    routed = {route.path.replace(":path", "") for route in app.routes}
    assert set(told["paths"]) == {path for path in routed if not path.startswith("/episodes/")}
    for path in told["paths"].values():
        for operation in path.values():
            for body in operation.get("requestBody", {}).get("content", {}).values():
                Draft202012Validator.check_schema(body["schema"])


@pytest.mark.parametrize("path", ROUTES)
def test_a_field_that_is_not_published_is_refused_and_one_that_is_is_known(assembly, path):
    fields = ROUTES[path].request["properties"]

    async def work(served):
        async with served.http() as http:
            said = {}
            for name in (*fields, "not_published"):
                short = dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), 1)
                asked = {"model": "tiny", "messages": 7, "input": "hi", "prompt": 7, **short, name: "tiny"}
                asked = {each: value for each, value in asked.items() if each in (*fields, name)}
                answer = await http.post(f"/v1/{path}", json=asked)
                said[name] = (answer.json().get("error") or {"message": ""})["message"]
            return said

    said = played(assembly, work)
    assert "not known here" in said.pop("not_published")
    assert not any("not known here" in message for message in said.values())


OPERATIONS = [
    (path, method, mode)
    for path, methods in document("tiny")["paths"].items()
    for method in methods
    for mode in ("positive", *(("negative",) if method == "post" else ()))
]
"""Of what has no body nothing can just not fit."""


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), OPERATIONS)
def test_schemathesis_finds_no_request_over_which_the_server_fails(assembly, path, method, mode):
    """What fits the document, and what just does not; of what fits some is answered."""
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    served = Served(assembly)
    operation = schemathesis.openapi.from_dict(document("tiny"))[path][method]
    found = Counter()

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
        found[asyncio.run(asked(sent)).status_code] += 1

    async def asked(sent):
        async with served.http() as http:  # what the server raises is raised here
            return await http.request(**{name: value for name, value in sent.items() if value is not None})

    tried()
    assert not [status for status in found if status >= 500], found
    if mode == "positive" and path in ANSWERED:
        assert found[200], found
