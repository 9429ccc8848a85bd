"""A policy that learns while it is served, and a user who talks to it, without a socket."""

import asyncio
import contextlib
import hashlib

import httpx2
import openai

from tests_served import TINY
from whetstone.assembly import assemble
from whetstone.recipe import load_recipe
from whetstone.serving import Episodes, Keys, Server, Speaker, application
from whetstone.serving.live.learning import Live
from whetstone.serving.live.routes import live_routes
from whetstone.serving.live.scorers import by_rules
from whetstone.serving.live.weights import as_reinforcement, settings_of

PLAIN = ["ablations=null", "chat.format=hermes", "supervised=null", "evaluation.interval_steps=1",
         "evaluation.interval_episodes=3", "rollout.max_new_tokens=4"]  # fmt: skip


def live_recipe(*overrides, policy=TINY):
    return load_recipe("demo", [*PLAIN, policy, "live.turns_per_update=2", "live.learning_rate=1e-2", *overrides])


class LiveServed:
    """The server of a recipe whose policy learns; `async with` is from its start to its end."""

    def __init__(self, folder, resolved, *, scorer=by_rules, keys=None):
        self.lines = []
        self.assembly = assemble(as_reinforcement(resolved))
        self.engine = self.assembly.engine()
        settings = settings_of(resolved)
        self.live = Live(self.assembly, self.engine, scorer, folder, settings=settings, say=self.lines.append)
        self.episodes = Episodes(watcher=self.live)
        speaker = Speaker(self.engine, self.assembly.chat, context_length=self.assembly.policy.context_length)
        self.server = Server(speaker, self.episodes, name="tiny", keys=keys or Keys())
        self.app = application(self.server, also=live_routes(self.server, self.live))

    async def __aenter__(self):
        await self.live.begin()
        self.learning = asyncio.ensure_future(self.live.run())
        return self

    async def __aexit__(self, *failure):
        self.learning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.learning
        if not any(failure):
            await self.live.close()
        await self.engine.close()

    def http(self, **options):
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://localhost", **options)

    def client(self, episode):
        return openai.AsyncOpenAI(
            api_key="none", base_url=f"http://localhost/episodes/{episode}/v1", max_retries=0, http_client=self.http()
        )

    async def asked(self, method, path, **options):
        """(status, body) of an administrator's request."""
        answer = await self.http().request(method, f"/v1/live{path}", **options)
        return answer.status_code, answer.json()

    async def settled(self):
        """All that is due is learned."""
        while self.live._is_due() or self.live._alone.locked():
            assert not self.learning.done(), self.learning.exception()
            await asyncio.sleep(0.01)

    def weights(self):
        """What they are, in a word."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.assembly.policy.model.state_dict().items()):
            found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
        return found.hexdigest()


async def corrected(served, episode, *, says="No, it should be B.", asks="Name a letter.", seed=0, tokens=3):
    """An episode whose first answer is corrected; what was said."""
    client, said = served.client(episode), [{"role": "user", "content": asks}]
    for turn in range(2):
        told = await client.chat.completions.create(model="tiny", messages=said, max_tokens=tokens, seed=seed + turn)
        said.append(told.choices[0].message.model_dump(exclude_none=True))
        said.append({"role": "user", "content": says})
    return said
