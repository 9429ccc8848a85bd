"""An MCP server that restarts, expires sessions, has a failing proxy, or never starts."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys

import pytest

from whetstone.chat import ToolCall
from whetstone.errors import InfrastructureError
from whetstone.tools import Mcp, Toolset
from whetstone.trajectory import Task

pytest.importorskip("mcp", reason="the SDK of MCP: pip install -e '.[mcp]'")
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

SHAPES = ["streamable", "json", "sse"]


def make_server(shape, **options):
    server = MCPServer("shop")

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True))
    def price(item: str) -> int:
        """Price of an item."""
        return len(item)

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True))
    def refuse() -> int:
        """Fail."""
        raise ValueError("no such item")

    if shape == "sse":
        return server.sse_app()
    return server.streamable_http_app(json_response=shape == "json", **options)


class Site:
    """A server with sessions and its proxy, on one address: restarted, expired or failing on request."""

    def __init__(self, shape, **options):
        self.shape, self.options = shape, options
        self.status = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/{'sse' if shape == 'sse' else 'mcp'}"

    async def start(self):
        self.app = make_server(self.shape, **self.options)
        started, self._stop = asyncio.Event(), asyncio.Event()

        async def live():
            async with self.app.router.lifespan_context(self.app):
                started.set()
                await self._stop.wait()

        self._living = asyncio.create_task(live())
        await started.wait()

    async def restart(self):
        self._stop.set()
        await self._living
        if self.shape == "sse":  # its streams end with the process
            await self._leave()
            await self.start()
            await self._serve()
        else:
            await self.start()

    async def _serve(self):
        config = uvicorn.Config(self, port=self.port, log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _leave(self):
        self._server.should_exit = self._server.force_exit = True
        await self._serving

    async def __aenter__(self):
        await self.start()
        await self._serve()
        return self

    async def __aexit__(self, *_):
        self._stop.set()
        await self._living
        await self._leave()

    async def __call__(self, scope, receive, send):
        version = dict(scope["headers"]).get(b"mcp-protocol-version", b"")
        if self.status:
            await respond(send, self.status, b"<html>Bad Gateway</html>")
        elif version > b"2026":  # a server with sessions
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Unsupported protocol version"}}
            await respond(send, 400, json.dumps(error).encode(), b"application/json")
        else:
            await self.app(scope, receive, send)


class WithoutStream(Site):
    """A server that sends no messages by itself, so that a session without calls is idle."""

    async def __call__(self, scope, receive, send):
        if scope["method"] == "GET":
            await respond(send, 405, b"")
        else:
            await super().__call__(scope, receive, send)


async def respond(send, status, body, kind=b"text/html"):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def episode(url, connection="shared"):
    toolset = Toolset([Mcp(url=url, connection=connection, timeout_seconds=10)], timeout_seconds=20)
    await toolset.open(Task("t", "?"), seed=0)
    try:
        yield toolset
    finally:
        await toolset.close()


def call(toolset, name="price", **arguments):
    return toolset.call(ToolCall(name, json.dumps(arguments or ({"item": "tea"} if name == "price" else {}))))


@pytest.mark.parametrize("connection", ["shared", "auto", "episode"])
@pytest.mark.parametrize("shape", SHAPES)
def test_restart_costs_only_episodes_in_flight(shape, connection):
    async def run():
        async with Site(shape) as site:
            async with episode(site.url, connection) as first, episode(site.url, connection) as second:
                assert [(await call(one)).text for one in (first, second)] == ["3", "3"]
                await site.restart()
                answers = [await call(first), await call(second)]
            async with episode(site.url, connection) as later:
                return answers, [await call(later), await call(later, "refuse")]

    answers, later = asyncio.run(run())
    assert isinstance(answers[0].failure, InfrastructureError)
    assert "the session is lost" in str(answers[0].failure)
    # a shared connection is opened again by the next call of any episode
    assert (answers[1].text == "3") if connection != "episode" else answers[1].failure is not None
    assert {answer.record.outcome for answer in answers} <= {"ok", "unavailable"}
    assert (later[0].text, later[0].failure) == ("3", None)
    assert (later[1].record.outcome, later[1].failure) == ("tool_error", None)


def test_an_expired_session_is_opened_again():
    async def run():
        async with WithoutStream("json", session_idle_timeout=0.2) as site, episode(site.url) as first:
            await asyncio.sleep(1)
            lost = await call(first)
            async with episode(site.url) as second:
                return lost, await call(second)

    lost, second = asyncio.run(run())
    assert isinstance(lost.failure, InfrastructureError)
    assert second.text == "3"


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_failing_proxy_is_a_failure_of_infrastructure(shape, status):
    async def run():
        async with Site(shape) as site, episode(site.url) as first:
            assert (await call(first)).text == "3"
            site.status = status
            failed = await call(first)
            with pytest.raises(InfrastructureError):
                async with episode(site.url, "episode"):
                    pass
            site.status = 0
            async with episode(site.url) as second:
                return failed, await call(second)

    failed, second = asyncio.run(run())
    assert isinstance(failed.failure, InfrastructureError)
    assert f"status {status}" in str(failed.failure)
    assert second.text == "3"


def test_a_status_of_a_single_call_is_the_models_if_the_server_answers_otherwise():
    class OnlyCalls(Site):
        async def __call__(self, scope, receive, send):
            messages = [await receive()] if scope["method"] == "POST" else []
            self.status = 500 if messages and b"tools/call" in messages[0].get("body", b"") else 0

            async def replay():
                return messages.pop() if messages else await receive()

            await super().__call__(scope, replay, send)

    async def run():
        async with OnlyCalls("json") as site, episode(site.url) as first:
            return await call(first)

    answer = asyncio.run(run())
    assert (answer.record.outcome, answer.failure) == ("tool_error", None)
    assert "status 500" in answer.text


@pytest.mark.parametrize("shape", SHAPES)
def test_a_server_that_is_down_is_a_failure_of_infrastructure(shape):
    async def run():
        async with Site(shape) as site, episode(site.url) as first:
            assert (await call(first)).text == "3"
            await site._leave()
            failed = await call(first)
            await site._serve()
            async with episode(site.url) as second:
                return failed, await call(second)

    failed, second = asyncio.run(run())
    assert isinstance(failed.failure, InfrastructureError)
    assert second.text == "3"


# -- a process


BROKEN = "import sys\nopen(sys.argv[1], 'a').write('x')\nimport no_such_module_here\n"


@pytest.mark.slow
@pytest.mark.parametrize("connection", ["auto", "shared", "episode"])
def test_a_process_that_ends_at_import_is_started_twice_and_shown_once(tmp_path, connection, capfd):
    command = [sys.executable, "-c", BROKEN, str(tmp_path / "starts")]

    async def attempt():
        toolset = Toolset([Mcp(command=command, connection=connection)])
        try:
            await toolset.open(Task("t", "?"), seed=0)
        except InfrastructureError as error:
            return str(error)
        finally:
            await toolset.close()

    async def run():
        together = await asyncio.gather(*(attempt() for _ in range(8)))
        return [*together, *[await attempt() for _ in range(4)]]

    errors = asyncio.run(run())
    assert (tmp_path / "starts").read_text() == "xx"
    assert all("ended before it answered" in error for error in errors)
    assert sum("ModuleNotFoundError: No module named 'no_such_module_here'" in error for error in errors) == 11
    assert capfd.readouterr().err.count("ModuleNotFoundError") == 1


STORE = """
import os
from mcp.server.mcpserver import MCPServer
server = MCPServer("store")
@server.tool()
def number() -> int:
    "Number of the process."
    return os.getpid()
@server.tool()
def words() -> str:
    "Words of a set."
    return " ".join({"tea", "rice", "salt", "oil", "soap", "milk", "flour", "beans"})
server.run()
"""


@pytest.mark.slow
def test_a_process_that_is_killed_between_calls_is_started_again():
    async def run():
        toolset = Toolset([Mcp(command=[sys.executable, "-c", STORE], connection="episode", prewarm=0)])
        await toolset.open(Task("t", "?"), seed=0)
        try:
            first = int((await toolset.call(ToolCall("number", "{}"))).text)
            os.kill(first, signal.SIGKILL)
            between = await toolset.call(ToolCall("number", "{}"))
            return first, between, int((await toolset.call(ToolCall("number", "{}"))).text)
        finally:
            await toolset.close()

    first, between, second = asyncio.run(run())
    assert first != second
    assert between.record.outcome in ("tool_error", "tool_failed")


@pytest.mark.slow
def test_two_processes_of_a_server_list_a_set_in_one_order():
    async def words():
        toolset = Toolset([Mcp(command=[sys.executable, "-c", STORE], connection="episode", prewarm=0)])
        await toolset.open(Task("t", "?"), seed=0)
        try:
            return (await toolset.call(ToolCall("words", "{}"))).text
        finally:
            await toolset.close()

    assert len({asyncio.run(words()) for _ in range(3)}) == 1
