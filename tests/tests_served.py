"""A small policy behind the server, and the official client in front of it, without a socket."""

import asyncio
import json

import anthropic
import httpx2
import openai

from whetstone.assembly import assemble
from whetstone.chat import Message, ToolCall
from whetstone.inference import Generation
from whetstone.inference.protocol import EngineAbilities
from whetstone.recipe import load_recipe
from whetstone.serving import Episodes, Keys, Server, Speaker, application
from whetstone.serving.people import PeopleQueue, people_routes

TINY = "policy.tiny={vocabulary: 300, hidden: 16, layers: 1, heads: 2, intermediate: 16, context_length: 768}"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}

HI = [{"role": "user", "content": "Compute 2+3"}]


def made(*overrides):
    return assemble(load_recipe("demo", [TINY, "ablations=null", "chat.format=hermes", *overrides]))


class Served:
    """The server of an assembly's policy."""

    def __init__(self, assembly, *, engine=None, keys=None, **options):
        self.assembly, self.engine = assembly, engine or assembly.engine()
        self.over = []
        self.episodes = Episodes(self.over.append, **options)
        speaker = Speaker(self.engine, assembly.chat, context_length=assembly.policy.context_length)
        self.server = Server(speaker, self.episodes, name="tiny", keys=keys or Keys())
        self.people = PeopleQueue()
        self.app = application(self.server, also=people_routes(self.server, self.people))

    def http(self, **options):
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://localhost", **options)

    def client(self, path="", key="none", **options):
        return openai.AsyncOpenAI(
            api_key=key, base_url=f"http://localhost{path}/v1", max_retries=0, http_client=self.http(), **options
        )

    def anthropic(self, path="", key="none", **options):
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
    """An engine that says what it is told to, whoever asks."""

    def __init__(self, assembly, *lines):
        self.chat, self.lines, self.version, self.abilities, self.prompts = (
            assembly.chat,
            list(lines),
            7,
            EngineAbilities(),
            [],
        )

    async def generate(self, prompt, sampling, *, episode, drawn=(), heard=None):
        self.prompts.append((tuple(prompt), tuple(drawn)))
        line = self.lines.pop(0)
        ids = list(self.chat.write(line, ()) if isinstance(line, Message) else self.chat.encode(line))
        ids = ids[: sampling.max_new_tokens]
        finish = "stop" if ids[-1] in sampling.stop_ids else "length"
        for count in range(1, len(ids) if heard is not None else 0):
            await asyncio.sleep(0)
            if heard(ids[:count]):
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
