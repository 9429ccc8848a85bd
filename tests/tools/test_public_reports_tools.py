"""Faults that users of other projects reported for tools and MCP; see `public_reports.md`."""

import asyncio
import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import BaseModel

from support.sandbox import PATIENT, needs_isolation
from support.tool_episodes import played
from whetstone.chat import Image
from whetstone.errors import InfrastructureError
from whetstone.sandbox import Limits
from whetstone.tools import Mcp, OpenApi, Python, Shell, Toolset
from whetstone.tools.mcp_sdk import load_sdk
from whetstone.tools.schema import tool_from_function
from whetstone.tools.side_effects import CALLS_ALL
from whetstone.trajectory import Task

# MCP


class Pages(Mcp):
    """A server in this process whose list of tools has these pages: (names, next cursor) by cursor."""

    def __init__(self, pages, answer=None):
        super().__init__(command=[sys.executable, str(id(pages))], connection="episode", prewarm=0)
        self.pages, self.answer, self.num_requests = pages, answer, 0

    def _server(self):
        types = load_sdk().types

        async def listed(_, request):
            self.num_requests += 1
            names, following = self.pages[request.cursor if request is not None else None]
            tools = [types.Tool(name=name, inputSchema={"type": "object", "properties": {}}) for name in names]
            return types.ListToolsResult(tools=tools, nextCursor=following)

        async def called(_, __):
            return self.answer

        return load_sdk().Server("pages", version="1", on_list_tools=listed, on_call_tool=called)


@pytest.mark.parametrize("names", [["a", "b"], []])
def test_a_cursor_that_never_advances_is_an_error_after_two_pages(names):
    """Check report 10; with an empty page no count of tools ever ends the listing."""
    server = Pages({None: (names, "x"), "x": (names, "x")})

    async def opened():
        async with asyncio.timeout(20):
            toolset = Toolset([server])
            await toolset.open(Task("t", "?"), seed=0)

    with pytest.raises(InfrastructureError, match=r"cursor.*again") as raised:
        asyncio.run(opened())
    assert "\n" not in str(raised.value)
    assert server.num_requests == 2


def test_tools_of_every_page_are_tools():
    """Check report 11."""
    answer = load_sdk().types.CallToolResult(content=[load_sdk().types.TextContent(type="text", text="yes")])
    pages = {None: (["a", "b"], "1"), "1": ([], "2"), "2": (["c"], None)}
    assert played(Toolset([Pages(pages, answer)]), ("c", {}))[0].text == "yes"


def test_image_next_to_structured_content_is_kept():
    """Check report 19."""
    types, data = load_sdk().types, base64.b64encode(b"\x89PNG").decode()
    content = [
        types.TextContent(type="text", text="a plot"),
        types.ImageContent(type="image", data=data, mimeType="image/png"),
    ]
    answer = types.CallToolResult(content=content, structuredContent={"points": 3})
    (got,) = played(Toolset([Pages({None: (["a"], None)}, answer)]), ("a", {}))
    assert [type(part).__name__ for part in got.content] == ["Text", "Image"]
    assert next(part for part in got.content if isinstance(part, Image)).url.endswith(data)


SERVED = "from whetstone.cli.mcp import mcp_command; mcp_command()"


@pytest.mark.slow
@pytest.mark.parametrize("banner", ["", "print('Server started 🖥️'); print('[INFO] ready')"])
def test_text_on_standard_output_does_not_break_the_protocol(tmp_path, banner):
    """Check report 18: a tool that prints, also through a child process, and a server that prints a banner."""
    (tmp_path / "printing.py").write_text(
        "import subprocess, sys\n"
        "def add(a: int, b: int) -> int:\n    '''Add.'''\n    print('adding', a, b)\n"
        "    print({'jsonrpc': '2.0'}, flush=True)\n"
        "    subprocess.run([sys.executable, '-c', \"print('child')\"])\n    return a + b\n"
    )
    code = f"import os, sys; sys.path.insert(0, {str(tmp_path)!r}); {banner}\n{SERVED}"
    (got,) = played(Toolset([Mcp(command=[sys.executable, "-c", code, "printing:add"])]), ("add", {"a": 2, "b": 3}))
    assert got.text == "5"


# schemas


class Node(BaseModel):
    value: int
    children: list["Node"] = []


def test_a_union_keeps_the_item_types_of_its_members():
    """Check report 12."""

    def show(value: list[int] | dict[str, float]) -> str:
        """Show it."""
        return f"{type(value).__name__} {value}"

    schema = tool_from_function(show).spec.parameters["properties"]["value"]
    written = json.dumps(schema)
    assert {"type": "array", "items": {"type": "integer"}} in schema["anyOf"], written
    assert {"type": "object", "additionalProperties": {"type": "number"}} in schema["anyOf"], written
    toolset = Toolset([show])
    right, wrong = played(toolset, ("show", {"value": [1, 2]}), ("show", {"value": ["x"]}))
    assert (right.text, wrong.record.outcome) == ("list [1, 2]", "invalid_arguments")


def test_a_recursive_parameter_is_declared_checked_and_passed():
    """Check report 13."""

    def total(tree: Node) -> int:
        """Add up a tree."""
        return tree.value + sum(map(total, tree.children))

    spec = tool_from_function(total).spec
    assert len(json.dumps(spec.parameters)) < 1000
    tree = {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}, {"value": 4}]}
    right, wrong = played(
        Toolset([total]), ("total", {"tree": tree}), ("total", {"tree": {"value": 1, "children": [{"value": "x"}]}})
    )
    assert (right.text, wrong.record.outcome) == ("10", "invalid_arguments")


# sandboxed tools


@needs_isolation
def test_output_above_the_limit_is_marked_as_truncated():
    """Check report 14."""
    python, shell = played(
        Toolset([Python(limits=PATIENT), Shell(limits=PATIENT)], max_result_characters=1000),
        ("python", {"code": "print('x' * 10**6)"}),
        ("shell", {"command": "head -c 1000000 /dev/zero | tr '\\0' y"}),
    )
    for answer, letter in ((python, "x"), (shell, "y")):
        assert answer.record.truncated
        assert len(answer.text) <= 1100
        assert answer.text.strip(letter), "nothing marks the cut"


@pytest.mark.slow
@needs_isolation
@pytest.mark.parametrize(
    ("tool", "name", "arguments"),
    [
        (Python, "python", {"code": "print('before', flush=True)\nimport time\ntime.sleep(60)"}),
        (Python, "python", {"code": "print('before')\nwhile True: pass"}),
        (Shell, "shell", {"command": "echo before; sleep 60"}),
    ],
)
def test_output_before_a_timeout_is_kept(tool, name, arguments):
    """Check report 15."""
    (answer,) = played(Toolset([tool(limits=Limits(wall_seconds=2))]), (name, arguments))
    assert answer.record.outcome == "timeout"
    assert "before" in answer.text


# OpenAPI


class Echo(BaseHTTPRequestHandler):
    """Answers with the request."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        text = json.dumps({"path": self.path, "body": body, "header": self.headers.get("id")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def echo():
    server = HTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def parameter(name, place):
    return {"name": name, "in": place, "required": True, "schema": {"type": "integer"}}


def in_json(schema):
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def test_names_that_path_query_and_body_share_are_all_sent(echo, tmp_path):
    """Check report 16: each of them is a separate argument."""
    fields = {"type": "object", "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}, "required": ["id"]}
    numbers = {"type": "array", "items": {"type": "integer"}}
    places = [parameter("id", "path"), parameter("id", "query"), parameter("id", "header")]
    document = {
        "openapi": "3.1.0",
        "paths": {
            "/users/{id}": {"post": {"operationId": "fields", "parameters": places, "requestBody": in_json(fields)}},
            "/whole": {
                "post": {
                    "operationId": "whole",
                    "parameters": [parameter("body", "query")],
                    "requestBody": in_json(numbers),
                }
            },
        },
    }  # fmt: skip
    file = tmp_path / "api.json"
    file.write_text(json.dumps(document))
    toolset = Toolset([OpenApi(file=str(file), url=echo)], calls=CALLS_ALL)
    specs = {spec.name: spec for spec in toolset.specs}
    assert len(specs["fields"].properties) == 5
    assert len(specs["whole"].properties) == 2
    assert set(specs["fields"].parameters["required"]) == set(specs["fields"].properties) - {"n"}
    values = {name: number for number, name in enumerate(specs["fields"].properties, start=1)}
    values_of_whole = {
        name: [7] if inner["type"] == "array" else 8 for name, inner in specs["whole"].properties.items()
    }
    first, second = [json.loads(a.text) for a in played(toolset, ("fields", values), ("whole", values_of_whole))]
    sent = json.loads(first["body"])
    assert (first["path"], first["header"]) == ("/users/1?id=2", "3")
    assert sent == {"id": 4, "n": values["n"]}
    assert (second["path"], json.loads(second["body"])) == ("/whole?body=8", [7])
