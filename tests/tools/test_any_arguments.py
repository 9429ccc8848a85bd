"""Any arguments of a model get a readable result, and the episode counts."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image as Pictures

from support.sandbox import needs_isolation
from support.slow import examples
from whetstone.chat import Image, Text, ToolCall
from whetstone.sandbox import Limits
from whetstone.tools import (
    Budget,
    Files,
    Http,
    ImageTools,
    Notes,
    OpenApi,
    Python,
    Search,
    Shell,
    Simulated,
    ToolCatalog,
    Toolset,
    calculator,
    pocket_calculator,
    submit,
)
from whetstone.tools.image import as_url
from whetstone.trajectory import Task

LIMITS = Limits(wall_seconds=2.0, cpu_seconds=1.0, memory_mb=200, processes=12, folder_mb=16, files=200)
SPECIFICATION = """
openapi: 3.0.1
paths:
  /items/{item}:
    post:
      operationId: put_item
      parameters:
        - {name: item, in: path, required: true, schema: {}}
        - {name: language, in: header, schema: {}}
        - {name: session, in: cookie, schema: {}}
        - {name: tags, in: query, schema: {}}
      requestBody: {content: {application/json: {schema: {type: object, properties: {price: {}}}}}}
"""
ODD = [
    "",
    "\0",
    "a\r\nb: c",
    "../..",
    "\ud800",
    "é" * 300,
    "[" * 5000,
    "http://localhost\r\n",
    "(((((",
    "1/0",
    "*" * 50,
]
NUMBERS = [0, -1, 2**63, 10**400, 1e308, float("nan"), float("inf"), 0.1]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(NUMBERS)
    | st.integers()
    | st.floats()
    | st.sampled_from(ODD)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(ODD) | st.text(), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module", params=["on the host", pytest.param("in a sandbox", marks=needs_isolation)])
def toolsets(request, tmp_path_factory):
    """Return all tools that need no server, one per toolset, so that most arguments are for that tool."""
    if request.param == "in a sandbox":
        return Task("t", "?"), [Toolset([kind(limits=LIMITS)]) for kind in (Python, Shell, Files)]
    folder = tmp_path_factory.mktemp("tools")
    (folder / "corpus.md").write_text("Tea is a plant.")
    (folder / "tools.jsonl").write_text(
        json.dumps({"name": "look", "parameters": {"type": "object", "properties": {}}})
    )
    (folder / "answers.jsonl").write_text(json.dumps({"name": "look", "arguments": {}, "result": "here"}))
    (folder / "service.yaml").write_text(SPECIFICATION)
    table = {"file": str(folder / "tools.jsonl"), "answers": str(folder / "answers.jsonl")}
    task = Task("t", "?", private={"images": [as_url(Pictures.new("RGB", (40, 20)))]})
    parts = [
        ImageTools(),
        Notes(),
        Search(corpus=str(folder / "corpus.md"), index=str(folder / "index")),
        Http(allow=["localhost"]),
        OpenApi(file=str(folder / "service.yaml"), url="http://localhost:9"),
        Simulated(**table),
        ToolCatalog(**table),
    ]
    return task, [Toolset([part]) for part in parts] + [
        Toolset([calculator, pocket_calculator, submit, Budget(total=1e9)])
    ]


def answered(toolset, task, calls):
    async def episode():
        await toolset.open(task, seed=0)
        try:
            return [await toolset.call(call) for call in calls]
        finally:
            await toolset.close()

    return asyncio.run(episode())


def arguments_for(draw, spec):
    """Sample values of any type, often under the names of parameters."""
    if draw(st.booleans()):
        return draw(VALUES)
    known = list(spec.parameters.get("properties", {})) or ["x"]
    return {name: draw(VALUES) for name in draw(st.lists(st.sampled_from(known), unique=True))}


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_as_arguments_of_any_tool_is_answered(toolsets, data):
    task, every = toolsets
    for toolset in every:
        calls = [
            ToolCall(spec.name, json.dumps(arguments_for(data.draw, spec), ensure_ascii=data.draw(st.booleans())))
            for spec in toolset.specs
        ]
        for answer in answered(toolset, task, calls):
            assert all(isinstance(part, Text | Image) for part in answer.content)
            answer.text.encode()  # values that cannot be stored do not belong into an episode
            # the specification has no server: only there a valid request fails, too
            assert answer.failure is None or answer.record.name == "put_item"
            assert answer.record.outcome != "tool_failed" or answer.failure is not None, answer.text
