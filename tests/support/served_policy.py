"""A small policy on the server, and the official client, without a socket."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager, nullcontext

import httpx2
import openai

from whetstone.assembly import assemble
from whetstone.chat import Message, ToolCall
from whetstone.inference import Generation
from whetstone.inference.protocol import EngineCapabilities
from whetstone.recipe import load_recipe
from whetstone.serving import CompletionService, EpisodeRegistry, Keys, Server, build_serving_app
from whetstone.serving.http_server import build_server
from whetstone.serving.human_in_the_loop import PeopleQueue, people_routes

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 768}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}

HI = [{"role": "user", "content": "Compute 2+3"}]


def build_assembly(*overrides):
    return assemble(load_recipe("demo", [TINY, "ablations=null", "chat.format=hermes", *overrides]))


class Served:
    """The server of an assembly's policy."""

    def __init__(self, assembly, *, engine=None, keys=None, limits=None, **options):
        self.assembly, self.engine = assembly, engine or assembly.build_engine()
        self.over = []
        self.episodes = EpisodeRegistry(self.over.append, **options)
        speaker = CompletionService(self.engine, assembly.chat, context_length=assembly.policy.context_length)
        self.server = Server(speaker, self.episodes, name="tiny", keys=keys or Keys(), **(limits or {}))
        self.people = PeopleQueue()
        self.app = build_serving_app(self.server, extra_routes=people_routes(self.server, self.people))

    def http(self, **options):
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://localhost", **options)

    def client(self, path="", key="none", **options):
        return openai.AsyncOpenAI(
            api_key=key, base_url=f"http://localhost{path}/v1", max_retries=0, http_client=self.http(), **options
        )

    def anthropic(self, path="", key="none", **options):
        import anthropic  # takes a second, which others do not wait for

        return anthropic.AsyncAnthropic(
            api_key=key, base_url=f"http://localhost{path}", max_retries=0, http_client=self.http(), **options
        )

    async def close(self):
        await self.engine.close()


def played(assembly, work, **options):
    async def run():
        served = Served(assembly, **options)
        try:
            return await work(served)
        finally:
            await served.close()

    return asyncio.run(run())


class Scripted:
    """An engine with scripted responses to any client."""

    def __init__(self, assembly, *lines):
        self.chat, self.lines, self.version, self.capabilities, self.prompts = (
            assembly.chat,
            list(lines),
            7,
            EngineCapabilities(),
            [],
        )

    async def generate(self, request):
        sampling, on_tokens = request.sampling, request.on_tokens
        self.prompts.append((request.prompt.ids, tuple(request.sampled_spans)))
        line = self.lines.pop(0)
        ids = list(self.chat.write(line, ()) if isinstance(line, Message) else self.chat.encode(line))
        ids = ids[: sampling.max_new_tokens]
        finish = "stop" if ids[-1] in sampling.stop_ids else "length"
        for count in range(1, len(ids) if on_tokens is not None else 0):
            await asyncio.sleep(0)
            if on_tokens(ids[:count]):
                ids, finish = ids[:count], "abort"
                break
        nothing = (0.0,) * len(ids)
        return Generation(tuple(ids), (-0.5,) * len(ids), nothing, (7,) * len(ids), finish, 0.0, nothing)

    def forget(self, episode):
        pass

    async def close(self):
        pass


def called(name="add", **arguments):
    return Message("assistant", (), (ToolCall(name, json.dumps(arguments), "call_0_0"),))


async def until(so):
    """Poll a condition."""
    while not so():  # noqa: ASYNC110 - without a notification
        await asyncio.sleep(0.005)


@asynccontextmanager
async def at_a_socket(app, **patience):
    """Serve an application on a real socket; yield its port."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = build_server(app, **patience)
    server.capture_signals = nullcontext  # those of the tests stay
    serving = asyncio.ensure_future(server.serve(sockets=[bound]))
    await until(lambda: server.started)
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def sent_raw(port, written):
    """Send bytes to a socket and return (status, headers, body); status 0 if the server disconnects."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(written)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return int(lines[0].split()[1]), headers, body
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, {}, b""
    finally:
        writer.close()


def request(path, body=b"", *, method="POST", host="localhost", **headers):
    """Build a request in bytes."""
    written = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", f"content-length: {len(written)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + written
