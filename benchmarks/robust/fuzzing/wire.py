"""Environments over HTTP: arbitrary requests to a server, and arbitrary responses to a client.

The server must reject invalid requests with 4xx and one line, and continue; the client must report a failed server,
and accept only well-formed messages, tools and tasks.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from fuzzing.choices import Choices, require
from fuzzing.virtual_time import VirtualLoop, run
from whetstone.chat import Message, Text, ToolCall, ToolSpec, tool_result, user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote import environment_server as server_module
from whetstone.environments.remote.agentgym import AgentGym
from whetstone.environments.remote.environment_client import Remote, RemoteTasks
from whetstone.environments.remote.environment_server import ServedEpisodes, build_environment_app
from whetstone.environments.remote.serialization import observation_to_wire, result_to_wire
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.trajectory import CallRecord, Task

WORDS = (
    "protocol", "id", "task", "prompt", "private", "tags", "seed", "turn", "action", "role", "assistant", "tool",
    "user", "content",
    "tool_calls", "function", "name", "arguments", "type", "text", "image_url", "url", "messages", "tools",
    "declared", "author",
    "environment", "partner", "policy", "reward", "terminated", "truncated", "reason", "calls", "observation",
    "error", "detail",
    "malformed", "parameters", "description", "ok", "terminated", "0", "{}", "x",
)  # fmt: skip
_OURS = (InfrastructureError, EpisodeError, TaskError)
_MOST_READ = 64 << 20


class Echo:
    """Environment that repeats the action."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the prompt."""
        return Observation((user(task.prompt),), (ToolSpec("f", "", {"type": "object", "properties": {}}),))

    async def step(self, action: Message) -> StepResult:
        """Return the text of the action."""
        require(
            all(isinstance(c.name, str) and isinstance(c.arguments, str) for c in action.tool_calls),
            "a call that is none",
            action,
        )
        require(
            all(isinstance(c.text, str) for c in action.content if isinstance(c, Text)), "a text that is none", action
        )
        return StepResult(Observation((user(action.text),)), reward=0.5)

    async def verdict(self) -> dict[str, Any]:
        """Return no verdict."""
        return {"success": False}

    async def close(self) -> None:
        """Release nothing."""


class Source:
    """Task source of a server."""

    def task(self, index: int) -> Task:
        """Return a task."""
        return Task(str(index), "x", {"answer": index}, {})

    def held_out(self, count: int) -> list[Task]:
        """Return tasks."""
        return [self.task(index) for index in range(min(count, 5))]


async def try_server(choices: Choices) -> None:
    """Send valid and invalid requests to a server in any order."""
    episodes = ServedEpisodes(Echo, capacity=4)
    token = choices.one(("", "", "s3cret"))
    app, ids = build_environment_app("echo", episodes, choices.one((Source(), None)), token=token), ["0", "x"]
    for number in range(1 + choices.below(6)):
        id = choices.one(ids)
        action = Message("assistant", (Text("x"),), (ToolCall("f", "{}", "c"),)).to_openai()
        method, path, body = choices.one((
            ("POST", "/episodes", {"protocol": 1}),
            ("POST", f"/episodes/{id}/reset", {"task": {"id": "t", "prompt": "x", "private": {}, "tags": {}},
            "seed": 0}),
            ("POST", f"/episodes/{id}/step", {"turn": choices.below(3), "action": action}),
            ("POST", f"/episodes/{id}/verdict", {}),
            ("DELETE", f"/episodes/{id}", None),
            ("GET", f"/tasks/{choices.one((0, 1, -1, 10**30))}", None),
            ("GET", f"/held_out/{choices.one((0, 3, 4097, 10**30))}", None),
            ("GET", "/health", None),
        ))  # fmt: skip
        text = (
            choices.json(choices.mutated(body, WORDS), WORDS).encode(errors="surrogatepass")
            if body is not None
            else b""
        )
        if choices.often(16):
            text = choices.raw(80)
        if choices.often(8):
            path = "/" + choices.text((*WORDS, "/", "episodes"), 6)
        question = choices.note(f"question {number}", (method, path, text))
        status, body_read = await _send_request(app, choices, *question, token=token)
        if path == "/episodes" and status == 201:
            ids.append(body_read["id"])
    require(len(episodes.open) <= 4, "more episodes than may be", len(episodes.open))
    await episodes.close()


async def _send_request(
    app: Any, choices: Choices, method: str, path: str, body: bytes, *, token: str
) -> tuple[int, Any]:
    headers = [
        (b"host", b"localhost:80"),
        (b"content-type", b"application/json"),
        (b"authorization", f"Bearer {token}".encode()),
    ]
    for _ in range(choices.below(3) * choices.often(40)):
        name = choices.one(
            (b"host", b"origin", b"authorization", b"content-length", b"content-type", b"transfer-encoding")
        )
        headers.insert(0, (name, choices.raw(20)))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "query_string": b"",
        "raw_path": path.encode(errors="replace"), "headers": headers, "scheme": "http", "server": ("localhost", 80),
        "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    cut = choices.below(len(body) + 1)
    left: list[dict[str, Any]] = [
        {"type": "http.request", "body": body[:cut], "more_body": True},
        {"type": "http.disconnect"}
        if choices.often(10)
        else {"type": "http.request", "body": body[cut:], "more_body": False},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return left.pop(0) if left else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    require(bool(sent) and sent[0]["type"] == "http.response.start", "no answer", sent)
    status, content = sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
    require(200 <= status < 500 or status == 503, "our fault", (status, content))
    if content.startswith(b"{"):
        response = json.loads(content)
        require(status < 400 or "\n" not in str(response["error"]), "no one line", response)
        return status, response
    require(status in (400, 404, 405), "an answer that is no JSON", (status, content))
    return status, None


class Answers(httpx2.AsyncBaseTransport):
    """Transport of a server with arbitrary responses."""

    def __init__(self, choices: Choices) -> None:
        self.choices, self.count = choices, 0

    async def handle_async_request(self, request: Any) -> Any:
        """Return a response."""
        choices, path = self.choices, str(request.url)
        self.count += 1
        require(self.count < 100, "asks without end", self.count)
        observation = observation_to_wire(
            Observation((user("x"), tool_result("y")), (ToolSpec("f", "", {"type": "object"}),))
        )
        if path.endswith("/step") or path.endswith("/action"):
            right: Any = result_to_wire(StepResult(Observation((user("x"),)), 0.5, calls=(CallRecord("f", "ok", 0.1),)))
        elif path.endswith("/reset"):
            right = observation
        elif "/tasks/" in path:
            right = {"id": "t", "prompt": "x", "private": {}, "tags": {}}
        else:
            right = {
                "id": "0",
                "tasks": [{"id": "t"}],
                "success": True,
                "observation": "x",
                "reward": 1,
                "done": False,
                "state": "x",
            }
        text = choices.json(choices.mutated(right, WORDS), WORDS).encode(errors="surrogatepass")
        if choices.often(16):
            text = choices.raw(60)
        status = choices.one((200, 201, 204, 301, 400, 404, 409, 422, 500, 503, 599)) if choices.often(30) else 200
        headers = {}
        if choices.often(10):
            headers["content-encoding"] = choices.one(("gzip", "deflate", "br", "x"))
        if choices.often(20):
            headers["content-type"] = choices.one(
                ("text/html; charset=utf-16", "x; charset=nowhere", "application/json; charset=idna", "")
            )
        choices.note(f"answer {self.count}", (status, headers, text))
        if choices.often(4):
            raise httpx2.ReadError("gone")
        if choices.often(3):
            return httpx2.Response(200, stream=Endless())
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(text))


class Endless(httpx2.AsyncByteStream):
    """Response body without end."""

    def __init__(self) -> None:
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.read += 1 << 20
            require(self.read < _MOST_READ, "an answer without end is read", self.read)
            yield b" " * (1 << 20)


async def try_client(choices: Choices) -> None:
    """Play an episode on a server with arbitrary responses."""
    is_agent_gym = choices.often(60)
    remote: Any = AgentGym(url="http://localhost:1") if is_agent_gym else Remote(url="http://localhost:1")
    try:
        for number in range(1 + choices.below(4)):
            try:
                if number == 0:
                    _observed(await remote.reset(Task("1", "x", {}, {}), seed=0))
                elif choices.often(40) and not is_agent_gym:
                    require(isinstance(await remote.verdict(), dict), "a verdict that is no mapping")
                else:
                    result = await remote.step(Message("assistant", (Text("x"),)))
                    _observed(result.observation)
                    require(
                        result.reward is None or math.isfinite(result.reward), "a reward that is none", result.reward
                    )
                    require(
                        result.reward is None or isinstance(result.reward, float),
                        "a reward that is none",
                        result.reward,
                    )
                    for call in result.calls:
                        require(
                            isinstance(call.name, str) and isinstance(call.outcome, str), "a record that is none", call
                        )
                        require(math.isfinite(call.seconds) and math.isfinite(call.cost), "a record that is none", call)
            except _OURS as error:
                require(len(str(error)) < 3000, "no short reason", str(error))
    finally:
        await remote.close()


def _observed(observation: Observation) -> None:
    for message in observation.messages:
        require(message.role in ("system", "user", "assistant", "tool"), "a role that is none", message)
        require(
            all(isinstance(part.text, str) for part in message.content if isinstance(part, Text)),
            "a text that is none",
            message,
        )
        for call in message.tool_calls:
            require(isinstance(call.name, str) and isinstance(call.arguments, str), "a call that is none", call)
        require(message.tool_call_id is None or isinstance(message.tool_call_id, str), "an id that is none", message)
    for spec in observation.tools:
        require(isinstance(spec.name, str) and isinstance(spec.description, str), "a tool that is none", spec)
        require(isinstance(spec.parameters, dict), "a schema that is none", spec)
        json.dumps(spec.to_openai())
    require(
        all(isinstance(one, str) for pair in observation.declared for one in pair),
        "a word that is none",
        observation.declared,
    )


def tasks(choices: Choices) -> None:
    """Read tasks of a server with arbitrary responses."""
    try:
        source = RemoteTasks(url="http://localhost:1")
        all_tasks = [source.task(0), *source.held_out(2)]
    except TaskError as error:
        require("\n" not in str(error), "no one line", error)
        return
    for task in all_tasks:
        require(isinstance(task.id, str) and isinstance(task.prompt, str), "a task that is none", task)
        require(isinstance(task.private, dict) and isinstance(task.tags, dict), "a task that is none", task)


_client = httpx2.AsyncClient
_now: list[Choices] = []


def _asking(self: Any, *arguments: Any, **options: Any) -> None:
    _client.__init__(self, *arguments, **{**options, "transport": Answers(_now[-1])})


class _Client(_client):
    __init__ = _asking


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop()


def one(choices: Choices) -> None:
    """Run one input."""
    _now[:] = [choices]
    vars(httpx2)["AsyncClient"] = _Client
    asyncio.set_event_loop_policy(_Policy())
    try:
        kind = choices.below(5)
        if kind < 2:
            run(try_server(choices))
        elif kind < 4:
            run(try_client(choices))
        else:
            tasks(choices)
    finally:
        vars(httpx2)["AsyncClient"] = _client
        asyncio.set_event_loop_policy(None)


def plant() -> None:
    """Plant a server that trusts the turn number of a request."""
    honest = ServedEpisodes.step

    async def careless(self: ServedEpisodes, id: str, turn: int, action: Message) -> Any:
        if id in self.open and turn > 1:
            raise MemoryError("planted")
        return await honest(self, id, turn, action)

    server_module.ServedEpisodes.step = careless  # type: ignore[method-assign]
