"""A backend that fails is a failure of infrastructure; errors that a model can cause are not."""

import asyncio
import json
import socket
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import openai
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

import whetstone
from whetstone.chat import ToolCall, assistant
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.errors import RecipeError, ToolError
from whetstone.tool_calls import compute_tool_statistics, describe_failing_tools
from whetstone.tools import Toolset, backend_failures
from whetstone.tools.backend_failures import find_backend_error, get_pace, parse_retry_after
from whetstone.tools.openapi import OpenApi
from whetstone.tools.search import HttpSearch
from whetstone.trajectory import Task


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(backend_failures, "_PAUSE_SECONDS", 0.001)


class Server:
    """A local server that returns the given (status, headers), the last one repeatedly, and counts requests."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.requests.append(f"{self.command} {self.path}")
                left = outer.answers
                status, headers = left.pop(0) if len(left) > 1 else left[0]
                body = b'{"results": [{"text": "failure"}]}'
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def closed_port():
    """Return a port of this machine without a server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(tool, *, toolset=None, effects=None, **arguments):
    if effects is not None:
        tool.effects = effects
    toolset = toolset or Toolset([tool], timeout_seconds=60)
    toolset.calls = type(toolset.calls)(True)
    return asyncio.run(toolset.call(ToolCall(tool.__name__, json.dumps(arguments))))


def with_requests(url):
    def lookup() -> str:
        """Look up."""
        response = requests.get(url, timeout=30)
        response.raise_for_status()
        return response.text

    return lookup


def with_urllib(url):
    def lookup() -> str:
        """Look up."""
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.read().decode()

    return lookup


def with_httpx(url):
    async def lookup() -> str:
        """Look up."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.get(url)).raise_for_status().text

    return lookup


def with_openai(url):
    async def lookup() -> str:
        """Look up."""
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return str(await client.models.list())

    return lookup


CLIENTS = [with_requests, with_urllib, with_httpx, with_openai]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_of_any_client_is_infrastructure_after_three_attempts(client):
    answer = call(client(f"http://127.0.0.1:{closed_port()}"))
    assert (answer.record.outcome, answer.record.well_formed) == ("unavailable", True)
    assert isinstance(answer.failure, whetstone.InfrastructureError)
    assert str(answer.failure).startswith("lookup: ")


@pytest.mark.parametrize("status", [429, 500, 502, 503])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_status_of_the_backend_is_retried_by_any_client(client, status):
    with Server((status, {}), (status, {}), (200, {})) as server:
        answer = call(client(server.url))
        assert (answer.failure, answer.record.outcome, len(server.requests)) == (None, "ok", 3)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_status_that_the_request_caused_is_the_models_and_is_not_retried(client):
    with Server((404, {})) as server:
        answer = call(client(server.url))
        assert (answer.failure, answer.record.outcome, len(server.requests)) == (None, "tool_failed", 1)
        assert "404" in answer.record.error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such order"),
        KeyError("x"),
        ToolError("ask for another"),
        httpx2.LocalProtocolError("illegal header"),
        httpx2.UnsupportedProtocol("ftp"),
        requests.exceptions.InvalidURL("no host"),
        sqlite3.OperationalError("no such table"),
        type("TimeoutError", (Exception,), {"__module__": "playwright._impl._errors"})("no such selector"),
    ],
)
def test_an_error_of_the_arguments_is_no_failure_of_a_backend(error):
    assert find_backend_error(error, {}) is None


def test_a_tool_that_raises_a_value_error_is_answered_once_and_the_model_reads_it():
    calls = []

    async def lookup(id: str) -> str:
        """Look up."""
        calls.append(id)
        raise ValueError(f"no order {id}")

    answer = call(lookup, id="7")
    assert (answer.failure, answer.record.outcome, calls) == (None, "tool_failed", ["7"])
    place = f"test_backend_failures.py:{lookup.__code__.co_firstlineno + 3} (lookup)"  # for people
    assert (answer.text, answer.record.error) == (
        "error: ValueError: no order 7",
        f"{place}: ValueError: no order 7",
    )


class Unsafe(Exception):
    """An exception whose attributes raise."""

    @property
    def response(self):
        raise RuntimeError("not set")

    status = property(lambda self: 1 / 0)


class Throttled(Exception):
    """Imitate the exception of botocore."""

    def __init__(self, status):
        metadata = {"HTTPStatusCode": status, "HTTPHeaders": {"Retry-After": "1"}}
        self.response = {"ResponseMetadata": metadata}


def test_attributes_that_raise_and_statuses_in_mappings_are_read():
    assert find_backend_error(Unsafe(), {}) is None
    failure = find_backend_error(Throttled(429), {})
    assert (failure.was_sent, failure.retry_after) == (False, 1.0)
    assert find_backend_error(Throttled(400), {}) is None


@pytest.mark.parametrize("effect", ["write", "destructive"])
def test_a_tool_with_side_effects_is_not_called_again_once_the_request_was_sent(effect):
    with Server((503, {})) as server:
        answer = call(with_requests(server.url), effects=effect)
        assert (answer.record.outcome, len(server.requests)) == ("unavailable", 1)


def test_a_tool_with_side_effects_is_called_again_if_nothing_was_sent():
    with Server((429, {"retry-after": "0"}), (200, {})) as server:
        assert call(with_requests(server.url), effects="write").record.outcome == "ok"
        assert len(server.requests) == 2
    calls = []

    async def refund() -> str:
        """Refund."""
        calls.append(1)
        raise ConnectionRefusedError("down")

    assert call(refund, effects="destructive").record.outcome == "unavailable"
    assert len(calls) == 3
    calls.clear()

    async def cut() -> str:
        """Refund."""
        calls.append(1)
        raise ConnectionResetError("in the middle")

    assert call(cut, effects="destructive").record.outcome == "unavailable"
    assert len(calls) == 1


def test_the_number_of_attempts_can_be_set():
    with Server((503, {})) as server:
        tool = with_httpx(server.url)
        assert call(tool, toolset=Toolset([tool], attempts=1)).record.outcome == "unavailable"
        assert len(server.requests) == 1
    with pytest.raises(RecipeError, match="attempts: must be 1 or more"):
        Toolset([tool], attempts=0)


def test_a_server_that_the_model_chose_is_not_a_backend():
    async def fetch(url: str) -> str:
        """Fetch a page."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.get(url)).raise_for_status().text

    answer = call(fetch, url=f"http://127.0.0.1:{closed_port()}/")
    assert (answer.failure, answer.record.outcome) == (None, "tool_failed")
    with Server((500, {})) as server:
        answer = call(fetch, url=server.url)
        assert (answer.failure, answer.record.outcome, len(server.requests)) == (None, "tool_failed", 1)
    assert find_backend_error(ConnectionError("down"), {"url": "http://made.up"}) is None
    assert find_backend_error(ConnectionError("down"), {"id": "7"}) is not None


def test_a_request_that_fails_while_the_tool_answers_others_is_the_models():
    async def lookup(id: str) -> str:
        """Look up."""
        if id == "odd":
            await asyncio.sleep(0)
            raise ConnectionResetError("the server gave up on it")
        return "here"

    async def run():
        toolset = Toolset([lookup])
        odd = asyncio.create_task(toolset.call(ToolCall("lookup", '{"id": "odd"}')))
        await asyncio.sleep(0)
        while not odd.done():
            await toolset.call(ToolCall("lookup", '{"id": "7"}'))
        return await odd

    answer = asyncio.run(run())
    assert (answer.failure, answer.record.outcome) == (None, "tool_failed")


def test_retry_after_holds_back_all_calls_of_the_tool():
    starts = []

    async def lookup() -> str:
        """Look up."""
        starts.append(asyncio.get_running_loop().time())
        if len(starts) == 1:
            raise Throttled(429)
        return "here"

    async def run():
        toolset, began = Toolset([lookup]), asyncio.get_running_loop().time()
        first = asyncio.create_task(toolset.call(ToolCall("lookup", "{}")))
        while get_pace("lookup")._next < began + 1:  # noqa: ASYNC110 - until the first has failed
            await asyncio.sleep(0)
        return began, [await toolset.call(ToolCall("lookup", "{}")), await first]

    began, answers = asyncio.run(run())
    assert {answer.record.outcome for answer in answers} == {"ok"}
    assert min(starts[1:]) >= began + 0.999  # a sleep is never shorter


@given(st.floats(allow_nan=True, allow_infinity=True) | st.text() | st.none())
def test_a_pause_is_a_number_within_its_bounds(header):
    seconds = parse_retry_after(None if header is None else str(header))
    assert 0 <= seconds <= backend_failures.MAX_PAUSE_SECONDS


def test_retry_after_can_be_a_date():
    assert 50 < parse_retry_after(formatdate(time.time() + 60, usegmt=True)) <= 61
    assert parse_retry_after(formatdate(time.time() - 60, usegmt=True)) == 0


@pytest.mark.parametrize("status", [429, 503])
def test_an_operation_of_openapi_and_a_search_take_the_same_path(status, tmp_path):
    file = tmp_path / "shop.json"
    file.write_text(json.dumps({"openapi": "3.0.0", "paths": {"/order": {"get": {"operationId": "order"}}}}))
    with Server((status, {"retry-after": "0"}), (200, {})) as server:
        toolset = Toolset([OpenApi(file=str(file), url=server.url)])
        assert asyncio.run(toolset.call(ToolCall("order", "{}"))).record.outcome == "ok"
        assert server.requests == ["GET /order"] * 2
    with Server((status, {}), (200, {})) as server:
        toolset = Toolset([HttpSearch(url=server.url)])
        assert asyncio.run(toolset.call(ToolCall("search", '{"query": "x"}'))).text == "failure"
    with Server((429, {})) as server:
        toolset = Toolset([OpenApi(file=str(file), url=server.url)])
        answer = asyncio.run(toolset.call(ToolCall("order", "{}")))
        assert (answer.record.outcome, len(server.requests)) == ("unavailable", 3)


def test_a_backend_that_limits_the_rate_is_answered_with_the_key_that_limits_calls():
    with Server((429, {"retry-after": "0"})) as server:
        answer = call(with_requests(server.url))
    assert answer.record.outcome == "unavailable"
    assert answer.record.error.startswith("set environment.max_calls_per_second={lookup: N} below the limit")
    (line,) = describe_failing_tools(compute_tool_statistics([answer.record] * 5))
    assert line.endswith("; its backend limits the rate of calls; a run that stopped continues with --resume")
    with Server((503, {})) as server:
        answer = call(with_requests(server.url))
    assert "max_calls_per_second" not in answer.record.error
    (line,) = describe_failing_tools(compute_tool_statistics([answer.record] * 5))
    assert line.endswith("; start its backend, no call of it succeeds; a run that stopped continues with --resume")


def test_a_class_whose_backend_is_down_at_its_start_is_infrastructure():
    class Shop:
        """A shop."""

        def open(self, episode):
            raise ConnectionRefusedError("down")

        def price(self) -> int:
            """Price."""
            return 3

    with pytest.raises(whetstone.InfrastructureError, match=r"tool Shop \(open\): ConnectionRefusedError: down"):
        asyncio.run(Toolset([Shop]).open(Task("t", "?"), seed=0))


# ------------------------------------------------------------ rate limits


def test_a_rate_limit_spaces_the_calls_of_all_episodes():
    starts = []

    async def lookup() -> str:
        """Look up."""
        starts.append(asyncio.get_running_loop().time())
        return "here"

    async def run():
        episodes = [Toolset([lookup], timeout_seconds=0.1, max_calls_per_second={"lookup": 20}) for _ in range(6)]
        began = asyncio.get_running_loop().time()
        return began, await asyncio.gather(*(each.call(ToolCall("lookup", "{}")) for each in episodes))

    began, answers = asyncio.run(run())
    assert [answer.record.outcome for answer in answers] == ["ok"] * 6  # waiting does not use up the time of a call
    assert all(start >= began + 0.05 * k - 0.001 for k, start in enumerate(starts))
    assert len(starts) == 6


def test_a_rate_limit_of_no_tool_is_an_error():
    def lookup() -> str:
        """Look up."""
        return "here"

    with pytest.raises(RecipeError, match=r'max_calls_per_second: there is no tool "lokup"; did you mean "lookup"'):
        ToolEnvironment(tools=[lookup], max_calls_per_second={"lokup": 1})
    with pytest.raises(RecipeError, match="lookup: must be above 0, got 0"):
        ToolEnvironment(tools=[lookup], max_calls_per_second={"lookup": 0})


# ------------------------------------------------------------ one thread


class Orders:
    """Orders in a database that is opened in the constructor."""

    def __init__(self):
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE TABLE orders (id TEXT)")
        self.threads = {threading.get_ident()}

    def open(self, episode):
        self.threads.add(threading.get_ident())
        self.connection.execute("INSERT INTO orders VALUES ('7')")

    def count(self) -> int:
        """Count the orders."""
        self.threads.add(threading.get_ident())
        return self.connection.execute("SELECT count(*) FROM orders").fetchone()[0]

    def verdict(self):
        return {"success": self.count() == 1}

    def close(self):
        self.threads.add(threading.get_ident())
        self.connection.close()


async def played(environment):
    await environment.reset(Task("t", "?"), seed=0)
    step = await environment.step(assistant("", *(ToolCall("count", "{}", id=str(k)) for k in range(4))))
    verdict = await environment.verdict()
    await environment.close()
    return step, verdict


def test_a_toolset_in_one_thread_uses_sqlite_in_every_stage_and_episode():
    async def run():
        environments = [ToolEnvironment(tools=[Orders], single_thread=True) for _ in range(3)]
        steps = [await played(environment) for environment in environments]
        return steps, {thread for each in environments for thread in each.toolset.holders[0].threads}

    steps, threads = asyncio.run(run())
    assert {call.outcome for step, _ in steps for call in step.calls} == {"ok"}
    assert [verdict["success"] for _, verdict in steps] == [True] * 3
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_calls_in_one_thread_do_not_overlap_and_have_their_full_time():
    running, most = [], []

    def slow() -> str:
        """Be slow."""
        running.append(1)
        most.append(len(running))
        time.sleep(0.2)
        running.pop()
        return "done"

    async def run():
        toolsets = [Toolset([slow], single_thread=True, timeout_seconds=5) for _ in range(4)]
        return await asyncio.gather(*(each.call(ToolCall("slow", "{}")) for each in toolsets))

    assert {answer.record.outcome for answer in asyncio.run(run())} == {"ok"}
    assert most == [1] * 4
