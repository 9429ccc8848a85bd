"""A small policy behind the server, and the official client in front of it, without a socket."""

import httpx2
import openai

from whetstone.assembly import assemble
from whetstone.recipe import load_recipe
from whetstone.serving import Episodes, Keys, Server, Speaker, application

TINY = "policy.tiny={vocabulary: 300, hidden: 16, layers: 1, heads: 2, intermediate: 16, context_length: 768}"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


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
        self.app = application(self.server)

    def http(self, **options):
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://localhost", **options)

    def client(self, path="", key="none", **options):
        return openai.AsyncOpenAI(
            api_key=key, base_url=f"http://localhost{path}/v1", max_retries=0, http_client=self.http(), **options
        )

    async def close(self):
        await self.engine.close()
