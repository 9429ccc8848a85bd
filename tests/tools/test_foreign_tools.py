"""Third-party tools: MCP servers, OpenAPI specifications, tables of results, catalogs, the network."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import anyio
import httpx2
import pytest

from support.tool_episodes import played
from whetstone.chat import Image, ToolCall
from whetstone.errors import InfrastructureError, RecipeError, TaskError
from whetstone.tools import Http, Mcp, OpenApi, Simulated, ToolCatalog, Toolset, calculator
from whetstone.tools.http import is_allowed_host
from whetstone.tools.mcp_connections import McpConnection, get_connections
from whetstone.tools.mcp_tools import create_mcp_server
from whetstone.tools.notes import Notes
from whetstone.tools.side_effects import CALLS_ALL
from whetstone.tools.tool_retrieval import Finder, specs_in, sufficiency_at_k
from whetstone.trajectory import Task

SERVE = [
    sys.executable,
    "-c",
    "from whetstone.cli.mcp import mcp_command; mcp_command()",
]  # `whetstone mcp`, only its server
SERVER = [*SERVE, "calculator", "notes", "image"]


# MCP


@pytest.mark.slow
def test_built_in_tools_over_mcp_are_the_same_tools():
    toolset = Toolset([Mcp(command=SERVER)])
    assert toolset.specs == ()  # not connected yet
    answers = played(
        toolset,
        ("calculator", {"expression": "6*7"}),
        ("calculator", {"expression": "1/0"}),
        ("calculator", {"wrong": 1}),
        ("write_note", {"text": "kept"}),
        ("read_notes", {}),
        ("nothing", {}),
    )
    assert [(a.text, a.record.outcome) for a in answers[:2]] == [
        ("42", "ok"),
        ("error: division by zero", "tool_error"),
    ]
    assert answers[2].record.outcome == "invalid_arguments"
    assert answers[4].text == "1: kept"
    assert answers[5].record.outcome == "unknown_tool"
    assert played(toolset, ("read_notes", {}))[0].text == "there are no such notes"  # a separate connection


@pytest.mark.slow
def test_shared_connection_is_used_by_all_episodes():
    async def two_episodes():
        texts = []
        for _ in range(2):
            toolset = Toolset(
                [Mcp(command=SERVER, connection="shared", include=["write_note", "read_notes"], prefix="my_")]
            )
            await toolset.open(Task("t", "?"), seed=0)
            assert [spec.name for spec in toolset.specs] == ["my_write_note", "my_read_notes"]
            await toolset.call(ToolCall("my_write_note", '{"text": "x"}'))
            texts.append((await toolset.call(ToolCall("my_read_notes", "{}"))).text)
            await toolset.close()
        return texts

    assert asyncio.run(two_episodes()) == ["1: x", "1: x\n2: x"]


@pytest.mark.slow
def test_concurrent_calls_share_one_connection():
    async def many():
        toolset = Toolset([Mcp(command=SERVER)])
        await toolset.open(Task("t", "?"), seed=0)
        calls = [ToolCall("calculator", json.dumps({"expression": f"{i}+1"})) for i in range(40)]
        answers = await asyncio.gather(*map(toolset.call, calls))
        await toolset.close()
        return [answer.text for answer in answers]

    assert asyncio.run(many()) == [str(i + 1) for i in range(40)]


def test_missing_or_dying_server_is_an_infrastructure_failure():
    with pytest.raises(RecipeError, match="mcp: no program no-such-program"):
        Mcp(command=["no-such-program"])
    with pytest.raises(InfrastructureError):
        played(Toolset([Mcp(command=[sys.executable, "-c", "pass"], timeout_seconds=10)]))
    with pytest.raises(InfrastructureError):
        played(Toolset([Mcp(url="http://127.0.0.1:9/mcp", timeout_seconds=5)]))


class InMemory(Mcp):
    """A server in this process, with the in-memory streams of the SDK."""

    def __init__(self, *tools, **options):
        super().__init__(command=[sys.executable, *map(str, tools)], **options)
        self.serving = tools

    def _server(self):
        self.server, toolset = create_mcp_server(self.serving)
        toolset.specs  # noqa: B018
        return self.server


def play_episodes(count, make, *calls, side_by_side=False):
    """Return (texts of each episode's results, number of connections, number of reused ones)."""

    async def one():
        toolset = Toolset([make()])
        await toolset.open(Task("t", "?"), seed=0)
        texts = [(await toolset.call(ToolCall(name, json.dumps(arguments)))).text for name, arguments in calls]
        await toolset.close()
        return texts

    async def all_of_them():
        if side_by_side:
            texts = await asyncio.gather(*(one() for _ in range(count)))
        else:
            texts = [await one() for _ in range(count)]
        new_connection = get_connections()
        for waiting in new_connection._ahead.values():  # within one process the SDK must not be stopped while it starts
            for connection in waiting:
                await connection.list_tools()
                await connection.close()
        return texts, new_connection.started, new_connection.found_ready

    return asyncio.run(all_of_them())


def test_read_only_server_is_shared_by_all_episodes_and_another_is_not():
    ask = ("calculator", {"expression": "6*7"})
    for side_by_side in (False, True):
        texts, started, _ = play_episodes(6, lambda: InMemory(calculator), ask, side_by_side=side_by_side)
        assert (texts, started) == ([["42"]] * 6, 1)
    assert play_episodes(3, lambda: InMemory(calculator, connection="episode", prewarm=0), ask)[1] == 3


def test_stateful_servers_are_started_ahead_and_serve_one_episode_each():
    calls = (("write_note", {"text": "x"}), ("read_notes", {}))
    outputs, started, ready = play_episodes(6, lambda: InMemory(Notes, prewarm=2), *calls)
    assert outputs == [[outputs[0][0], "1: x"]] * 6
    assert (started, ready) == (7, 4)  # after the end of the second episode, one server is ready for the next
    assert play_episodes(6, lambda: InMemory(Notes, prewarm=0), *calls)[1:] == (6, 0)


def test_server_is_named_in_one_short_line():
    command = [sys.executable, "-c", "import sys\nsys.exit(3)  # " + "x" * 999]
    with pytest.raises(InfrastructureError) as caught:
        played(Toolset([Mcp(command=command, timeout_seconds=10)]))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_exception_group_is_reported_by_its_single_cause():
    async def connect():
        connection = McpConnection(create_mcp_server([calculator])[0], turn=asyncio.Semaphore(1), seconds=5)
        await connection.list_tools()

        async def failing():
            inner = ExceptionGroup("in", [anyio.ClosedResourceError(), httpx2.ConnectError("All attempts failed")])
            raise ExceptionGroup("unhandled errors in a TaskGroup (1 sub-exception)", [inner])

        try:
            await connection._request(failing())
        finally:
            await connection.close()

    with pytest.raises(InfrastructureError, match=r"^MCP: ConnectError: All attempts failed$"):
        asyncio.run(connect())


@pytest.mark.slow
def test_server_that_crashes_in_a_call_and_restarts_is_a_failure_of_the_call(tmp_path):
    (tmp_path / "dying.py").write_text(
        "import os\n"
        "def die() -> str:\n    '''Die.'''\n    os._exit(1)\n"
        "def live() -> str:\n    '''Live.'''\n    return 'yes'\n"
        "def last() -> str:\n    '''Die for good.'''\n    os.remove('dying.py')\n    os._exit(1)\n"
    )
    code = f"import os; os.chdir({str(tmp_path)!r}); from whetstone.cli.mcp import mcp_command; mcp_command()"
    toolset = Toolset([Mcp(command=[sys.executable, "-c", code, "dying:die", "dying:live", "dying:last"])])
    died, lived = played(toolset, ("die", {}), ("live", {}))
    assert (died.record.outcome, lived.text) == ("tool_error", "yes")
    assert "ended in the middle of the call" in died.text
    with pytest.raises(InfrastructureError, match=r"ended before it answered|did not answer"):
        played(toolset, ("last", {}))


@pytest.mark.slow
def test_missing_mcp_package_is_reported():
    with pytest.raises(RecipeError, match="set exactly one of `command` and `url`"):
        Mcp()
    with pytest.raises(RecipeError, match="has no tool fly"):
        played(Toolset([Mcp(command=SERVER, include=["fly"])]))
    command = [sys.executable, "-m", "whetstone.cli.main", "mcp", "calculatr"]
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, 'did you mean "calculator"' in bad.stderr) == (2, True)


def test_over_streamable_http(tmp_path):
    script = tmp_path / "served.py"
    script.write_text(
        "import sys, uvicorn\nfrom whetstone.tools import calculator\n"
        "from whetstone.tools.mcp_tools import create_mcp_server\n"
        "server, toolset = create_mcp_server([calculator])\n"
        "uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level='error')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(script), str(port)])
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=0.1).close()
                break
            except OSError:
                threading.Event().wait(0.05)
        answers = played(Toolset([Mcp(url=f"http://127.0.0.1:{port}/mcp")]), ("calculator", {"expression": "2*3"}))
        assert answers[0].text == "6"
    finally:
        process.kill()
        process.wait()


# a web service


class Shop(BaseHTTPRequestHandler):
    """A service with a specification, which returns the request as its response."""

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        request = {"method": self.command, "path": self.path, "body": self.rfile.read(length).decode()}
        request["key"] = self.headers.get("X-Key")
        request["type"], request["cookie"] = self.headers.get("Content-Type"), self.headers.get("Cookie")
        status, headers, text = 200, {}, json.dumps(request)
        if self.path.startswith("/missing"):
            status, text = 404, "no such thing"
        elif self.path.startswith("/broken"):
            status = 500
        elif self.path.startswith("/away"):
            status, headers = 302, {"Location": "http://169.254.169.254/latest"}
        elif self.path.startswith("/round"):
            status, headers = 302, {"Location": "/round"}
        elif self.path.startswith("/on"):
            status, headers = 302, {"Location": "/here"}
        elif self.path.startswith("/much"):
            text = "x" * 10_000
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def shop():
    server = HTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


SPECIFICATION = """
openapi: 3.0.1
paths:
  /items/{item}:
    parameters:
      - {name: item, in: path, required: true, schema: {type: string}}
    get:
      operationId: get_item
      summary: Show an item.
      parameters:
        - {name: lang, in: query, schema: {type: string, enum: [de, en]}, description: The language.}
        - {name: tags, in: query, schema: {type: array, items: {type: string}}}
    delete: {}
  /items:
    post:
      operationId: addItem
      requestBody:
        content:
          application/json:
            schema: {$ref: '#/components/schemas/Item'}
  /broken: {get: {operationId: broken}}
  /missing: {get: {operationId: missing}}
components:
  schemas:
    Item:
      type: object
      required: [name]
      properties:
        name: {type: string}
        price: {type: integer}
        parent: {$ref: '#/components/schemas/Item'}
"""


def test_specification_becomes_one_tool_per_operation(shop, tmp_path):
    (tmp_path / "shop.yaml").write_text(SPECIFICATION)
    service = OpenApi(file=str(tmp_path / "shop.yaml"), url=shop, headers={"X-Key": "secret"})
    toolset = Toolset([service], calls=CALLS_ALL)
    specs = {spec.name: spec for spec in toolset.specs}
    assert list(specs) == ["get_item", "delete_items_item", "addItem", "broken", "missing"]
    assert specs["get_item"].description == "Show an item."
    assert specs["get_item"].parameters["required"] == ["item"]
    answers = played(
        toolset,
        ("get_item", {"item": "a/b c", "lang": "de", "tags": ["x", "y"]}),
        ("addItem", {"name": "tea", "price": 4}),
        ("get_item", {"item": "x", "lang": "fr"}),
        ("addItem", {"price": 4}),
        ("missing", {}),
    )
    first, second = (json.loads(answer.text) for answer in answers[:2])
    assert first["path"] == "/items/a%2Fb%20c?lang=de&tags=x&tags=y"
    assert (second["method"], json.loads(second["body"]), second["key"]) == (
        "POST",
        {"name": "tea", "price": 4},
        "secret",
    )
    assert "'fr' is not one of ['de', 'en']" in answers[2].text
    assert "'name' is a required property" in answers[3].text
    assert answers[4].text == "error: status 404: no such thing"
    # one failing operation is not a failing service
    assert played(toolset, ("broken", {}))[0].text.startswith("error: status 500")
    offline = OpenApi(file=str(tmp_path / "shop.yaml"), url="http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match="ConnectError"):
        played(Toolset([offline], calls=CALLS_ALL), ("broken", {}))


@pytest.mark.parametrize("language", ["de\r\nX-Evil: 1", "de\0", "dé", "\n", "d" * 10**6])
def test_invalid_header_is_an_error_of_the_model(shop, tmp_path, language):
    (tmp_path / "shop.yaml").write_text(
        "openapi: 3.0.1\npaths:\n  /items/{item}:\n    get:\n      operationId: show\n      parameters:\n"
        "      - {name: item, in: path, schema: {}}\n"
        "      - {name: Accept-Language, in: header, schema: {type: string}}\n"
        "      - {name: note, in: cookie, schema: {}}\n"
    )
    service = Toolset([OpenApi(file=str(tmp_path / "shop.yaml"), url=shop)], calls=CALLS_ALL)
    answers = played(
        service,
        ("show", {"item": "x", "Accept-Language": language}),
        ("show", {"item": language}),
        ("show", {"item": "x", "note": language}),
    )
    assert answers[0].record.outcome == "tool_error"
    assert {answer.failure for answer in answers} == {None}


BODIES = """
openapi: 3.0.1
paths:
  /login:
    post:
      operationId: login
      parameters: [{name: session, in: cookie, schema: {type: string}}]
      requestBody:
        required: true
        content:
          application/x-www-form-urlencoded:
            schema: {type: object, required: [name], properties: {name: {type: string}, stay: {type: boolean}}}
  /pictures:
    post:
      operationId: upload
      requestBody:
        content:
          multipart/form-data:
            schema:
              type: object
              properties: {title: {type: string}, picture: {type: string, format: binary}, size: {type: object}}
  /notes:
    put:
      operationId: note
      requestBody: {required: true, content: {text/plain: {schema: {type: string}}}}
  /orders:
    post:
      operationId: order
      requestBody: {content: {application/xml: {schema: {type: object, properties: {id: {type: integer}}}}}}
  /patches:
    post:
      operationId: mend
      requestBody:
        content: {application/merge-patch+json: {schema: {type: object, properties: {a: {type: integer}}}}}
"""


@pytest.mark.parametrize("item", ["..", ".", "", "../broken", "%2e%2e", "..\\\\..", "a/../../broken", "x?y#z"])
def test_argument_in_a_path_reaches_no_other_operation(shop, tmp_path, item):
    (tmp_path / "shop.yaml").write_text(SPECIFICATION)
    toolset = Toolset([OpenApi(file=str(tmp_path / "shop.yaml"), url=shop)], calls=CALLS_ALL)
    (answer,) = played(toolset, ("get_item", {"item": item}))
    if item in ("..", ".", ""):
        assert (answer.record.outcome, "names nothing" in answer.text) == ("tool_error", True)
    else:
        assert json.loads(answer.text)["path"].startswith("/items/")
        assert json.loads(answer.text)["path"].count("/") == 2


def test_body_of_any_type_is_sent_as_specified(shop, tmp_path):
    (tmp_path / "shop.yaml").write_text(BODIES)
    toolset = Toolset([OpenApi(file=str(tmp_path / "shop.yaml"), url=shop)], calls=CALLS_ALL)
    specs = {spec.name: spec.parameters for spec in toolset.specs}
    assert (list(specs["login"]["properties"]), specs["login"]["required"]) == (["session", "name", "stay"], ["name"])
    assert list(specs["upload"]["properties"]) == ["title", "picture", "size"]
    assert (specs["note"]["required"], specs["order"]["properties"].keys()) == (["body"], {"body"})
    answers = played(
        toolset,
        ("login", {"name": "a b&c", "stay": True, "session": "k 1"}),
        ("upload", {"title": "tëa", "picture": "GIF89a", "size": {"x": 1}}),
        ("note", {"body": "line one"}),
        ("mend", {"body": {"a": 1}}),
        ("login", {"stay": True}),
    )
    login, upload, note, mend = (json.loads(answer.text) for answer in answers[:4])
    assert (login["body"], login["type"]) == ("name=a+b%26c&stay=true", "application/x-www-form-urlencoded")
    assert login["cookie"] == "session=k%201"
    assert upload["type"].startswith("multipart/form-data; boundary=")
    parts = upload["body"].split(upload["type"].partition("boundary=")[2])
    assert [part.strip("-\r\n").split("\r\n\r\n")[1] for part in parts[1:-1]] == ["tëa", "GIF89a", '{"x": 1}']
    assert 'name="picture"; filename="picture"' in parts[2]
    assert "filename" not in parts[1]
    assert (note["body"], note["type"]) == ("line one", "text/plain")
    assert (json.loads(mend["body"]), mend["type"]) == ({"a": 1}, "application/merge-patch+json")
    assert "'name' is a required property" in answers[4].text


PIECES = """
openapi: 3.1.0
paths:
  /files/{name}{ending}/x:
    get:
      operationId: show
      parameters: [{name: name, in: path, schema: {type: string}}, {name: ending, in: path, schema: {type: string}}]
  /parts:
    post:
      operationId: parts
      requestBody:
        content:
          multipart/form-data; charset=utf-8:
            schema:
              allOf:
                - {type: object, properties: {title: {type: string}}}
                - {required: [files], properties: {files: {type: array, items: {type: string, format: binary}}}}
  /anything:
    post:
      operationId: anything
      requestBody: {content: {multipart/form-data: {schema: {type: object, additionalProperties: true}}}}
  /form:
    post:
      operationId: form
      requestBody:
        content: {application/x-www-form-urlencoded: {schema: {properties: {tags: {type: array}, n: {type: integer}}}}}
"""


def test_forms_and_multipart_bodies_are_sent_field_by_field(shop, tmp_path):
    (tmp_path / "shop.yaml").write_text(PIECES)
    toolset = Toolset([OpenApi(file=str(tmp_path / "shop.yaml"), url=shop)], calls=CALLS_ALL)
    specs = {spec.name: spec.parameters for spec in toolset.specs}
    assert (list(specs["parts"]["properties"]), specs["parts"]["required"]) == (["files", "title"], ["files"])
    answers = played(
        toolset,
        ("parts", {"title": "t", "files": ["one", "two"]}),
        ("anything", {"body": {"a": "b", "c": 1}}),
        ("form", {"tags": ["x", "y"], "n": 2}),
    )
    parts, anything, form = (json.loads(answer.text) for answer in answers)
    fields = [part.strip("-\r\n").split("\r\n\r\n") for part in parts["body"].split(parts["type"][30:])[1:-1]]
    assert [text for _, text in fields] == ["t", "one", "two"]
    assert [head.count('filename="files"') for head, _ in fields] == [0, 1, 1]
    assert ('name="a"' in anything["body"], anything["type"][:19]) == (True, "multipart/form-data")
    assert (form["body"], form["type"]) == ("tags=x&tags=y&n=2", "application/x-www-form-urlencoded")


def test_arguments_that_escape_a_path_together_are_refused(shop, tmp_path):
    (tmp_path / "shop.yaml").write_text(PIECES)
    toolset = Toolset([OpenApi(file=str(tmp_path / "shop.yaml"), url=shop)], calls=CALLS_ALL)
    refused, fine = played(toolset, ("show", {"name": ".", "ending": "."}), ("show", {"name": "a", "ending": ".."}))
    assert (refused.record.outcome, "'..' names nothing" in refused.text) == ("tool_error", True)
    assert json.loads(fine.text)["path"] == "/files/a../x"


SERVED = "openapi: 3.0.0\nservers: [{url: 'http://127.0.0.1:1'}]\n"
MANY = f"""
paths: {{/a: {{get: {{requestBody: {{content: {{application/json: {{schema: {{$ref: '#/s'}}}}}}}}}}}}}}
s: {{allOf: [{", ".join(["{$ref: '#/s'}"] * 40)}]}}
"""
"""A schema that holds itself forty times."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "shop.yaml"),
        ("swagger: 2", "not an OpenAPI 3 specification"),
        ("openapi: 3.0.0\npaths: {}", "no server address"),
        ("openapi: 3.0.0\nservers: 5", "no server address"),
        ("openapi: 3.0.0\nservers: [5]", "no server address"),
        (f"{SERVED}paths: 5", "a mapping is expected, got '5'"),
        (f"{SERVED}paths: {{/a: 5}}", "a mapping is expected, got '5'"),
        (f"{SERVED}paths: {{/a: {{get: x}}}}", "get /a is not valid in OpenAPI 3"),
        (f"{SERVED}paths: {{/a: {{get: {{parameters: 5}}}}}}", "get /a is not valid"),
        (
            f"{SERVED}paths: {{/a: {{get: {{parameters: [{{name: b, in: query, schema: true}}]}}}}}}",
            "get /a is not valid",
        ),
        (f"{SERVED}paths: {{/a: {{get: {{requestBody: [x]}}}}}}", "get /a is not valid"),
        (f"{SERVED}{MANY}", "references expanded"),
    ],
)
def test_invalid_specification_is_reported(tmp_path, text, message):
    (tmp_path / "shop.yaml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        OpenApi(file=str(tmp_path / "shop.yaml"))


def test_only_listed_hosts_are_reached(shop):
    host = shop.removeprefix("http://")
    http = Http(allow=[host], max_bytes=100)
    answers = played(
        Toolset([http]),
        ("http", {"url": f"{shop}/a"}),
        ("http", {"url": f"{shop}/on"}),
        ("http", {"url": f"{shop}/away"}),
        ("http", {"url": f"{shop}/round"}),
        ("http", {"url": f"{shop}/much"}),
        ("http", {"url": f"{shop}/a", "method": "POST"}),
        ("http", {"url": "file:///etc/passwd"}),
        ("http", {"url": f"http://user@{host}/"}),
        ("http", {"url": "http://127.0.0.1:1/"}),
        ("http", {"url": "http://[broken"}),
    )
    assert json.loads(answers[0].text)["path"] == "/a"
    assert json.loads(answers[1].text)["path"] == "/here"
    assert "169.254.169.254/latest is not on the list" in answers[2].text
    assert "redirections" in answers[3].text
    assert answers[4].text.startswith("x" * 100 + "\n[… cut at 100 bytes")
    assert [a.record.outcome for a in answers[5:]] == ["refused_by_policy"] * 5


@pytest.mark.parametrize(
    ("allowed", "url", "permitted"),
    [
        ("example.org", "https://example.org/x", True),
        ("example.org", "https://EXAMPLE.org./x", True),
        ("example.org", "https://example.org:8443/", False),
        ("example.org", "https://example.org.evil.net/", False),
        ("example.org", "https://evil.net/example.org", False),
        ("example.org", "https://example.org@evil.net/", False),
        ("*.example.org", "http://a.b.example.org/", True),
        ("*.example.org", "http://example.org/", False),
        ("*.example.org", "http://evilexample.org/", False),
        ("example.org:8080", "http://example.org:8080/", True),
        ("example.org", "ftp://example.org/", False),
        ("example.org", "//example.org/", False),
    ],
)
def test_host_lists(allowed, url, permitted):
    assert is_allowed_host([allowed], url) is permitted


def test_invalid_host_list_is_reported():
    for allow in ([], ["http://example.org"], ["*"], ["a*b"]):
        with pytest.raises(RecipeError, match="http"):
            Http(allow=allow)


# tables and catalogues


@pytest.fixture
def files(tmp_path):
    tools = tmp_path / "tools.jsonl"
    answers = tmp_path / "answers.jsonl"
    rows = []
    for thing in ("weather", "stock price", "exchange rate", "flight", "hotel", "recipe", "translation", "calendar"):
        name = f"get_{thing.replace(' ', '_')}"
        about = {"type": "object", "properties": {"of": {"type": "string", "description": f"Whose {thing}."}}}
        rows.append(
            {"type": "function", "function": {"name": name, "description": f"Tells the {thing}.", "parameters": about}}
        )
    tools.write_text("\n".join(map(json.dumps, rows)))
    answers.write_text('{"name": "get_weather", "arguments": {"of": "Bern"}, "result": "rain"}\n')
    return str(tools), str(answers)


def test_table_replaces_a_tool(files):
    tools, answers = files
    texts = played(
        Toolset([Simulated(file=tools, answers=answers)]),
        ("get_weather", {"of": "Bern"}),
        ("get_weather", {"of": "Rome"}),
        ("get_weather", {"of": 5}),
    )
    assert [(a.text, a.record.outcome) for a in texts[:2]] == [
        ("rain", "ok"),
        ('error: get_weather knows nothing of {"of": "Rome"}', "tool_error"),
    ]
    assert texts[2].record.outcome == "invalid_arguments"
    with pytest.raises(RecipeError, match="set `answers` or `url`"):
        Simulated(file=tools)


def test_model_answers_calls_that_are_not_in_the_table(files):
    class Model(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            call = json.loads(request["messages"][1]["content"])
            text = json.dumps({"choices": [{"message": {"content": f"sun in {call['arguments']['of']}"}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    tools, answers = files
    simulated = Simulated(file=tools, answers=answers, url=f"http://127.0.0.1:{server.server_port}/v1")
    texts = played(Toolset([simulated]), ("get_weather", {"of": "Bern"}), ("get_weather", {"of": "Rome"}))
    assert [answer.text for answer in texts] == ["rain", "sun in Rome"]
    assert not simulated.replayable
    server.shutdown()
    server.server_close()
    with pytest.raises(InfrastructureError, match="the model at"):
        played(Toolset([simulated]), ("get_weather", {"of": "Rome"}))


def test_tools_are_found_called_and_removed(files):
    tools, answers = files
    catalogue = ToolCatalog(
        file=tools, answers=answers, functions=["whetstone.tools:calculator"], max_visible=2, results_per_search=1
    )
    toolset = Toolset([catalogue])
    texts = played(
        toolset,
        ("get_weather", {"of": "Bern"}),
        ("find_tools", {"query": "is it raining, what weather"}),
        ("get_weather", {"of": "Bern"}),
        ("find_tools", {"query": "evaluate an expression of numbers"}),
        ("calculator", {"expression": "2+2"}),
        ("remove_tools", {"names": ["get_weather"]}),
        ("get_weather", {"of": "Bern"}),
        ("remove_tools", {"names": ["fly"]}),
        ("find_tools", {"query": "!!"}),
    )
    assert texts[0].record.outcome == "unknown_tool"
    assert json.loads(texts[1].text)["name"] == "get_weather"
    assert [texts[2].text, texts[4].text] == ["rain", "4"]
    assert texts[5].text == "1 removed, 1 in view"
    assert texts[6].record.outcome == "unknown_tool"
    assert "in view are: calculator" in texts[7].text
    assert texts[8].text == "no tool found"


def test_number_of_visible_tools_is_bounded(files):
    catalogue = ToolCatalog(file=files[0], max_visible=2, results_per_search=1)
    toolset = Toolset([catalogue])
    queries = ("weather", "flight", "hotel")
    played(toolset, *(("find_tools", {"query": query}) for query in queries))
    assert list(catalogue.live) == ["get_flight", "get_hotel"]


def test_task_selects_its_tools(files):
    catalogue = ToolCatalog(file=files[0], answers=files[1], selected_by="task", results_per_search=2)
    texts = played(
        Toolset([catalogue]), ("get_weather", {"of": "Bern"}), task=Task("t", "What is the weather in Bern?")
    )
    assert texts[0].text == "rain"
    with pytest.raises(RecipeError, match="there are no tools; set `file`, `functions` or `generated`"):
        ToolCatalog()


def test_search_quality_is_measured(files):
    finder = Finder(specs_in(files[0]))
    results = finder.search("price of a stock in another currency: exchange rate", 3)
    assert sufficiency_at_k(results, ["get_stock_price", "get_exchange_rate"], 3) == 1.0
    assert sufficiency_at_k(results, ["get_stock_price", "get_hotel"], 3) == 0.0
    assert sufficiency_at_k([], [], 3) == 1.0


@pytest.mark.parametrize("line", ["{", "[1]", '{"description": "x"}'])
def test_line_that_is_no_tool_is_reported(tmp_path, line):
    (tmp_path / "tools.jsonl").write_text(f'{{"name": "a"}}\n{line}\n')
    with pytest.raises(TaskError, match=r"tools.jsonl:2"):
        ToolCatalog(file=str(tmp_path / "tools.jsonl"))


@pytest.mark.slow
def test_images_are_returned_through_mcp():
    toolset = Toolset([Mcp(command=SERVER)])
    answers = played(toolset, ("crop", {"image": 1, "left": 0, "top": 0, "right": 1, "bottom": 1}))
    assert "there is no picture 1" in answers[0].text  # its server has a task without images
    assert not any(isinstance(part, Image) for part in answers[0].content)
