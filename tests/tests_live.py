"""A policy that learns while it is served, and a user who talks to it, without a socket."""

import asyncio
import hashlib

import httpx2
import openai

from tests_served import TINY
from whetstone.recipe import load_recipe
from whetstone.serving.live import LiveService

PLAIN = ["ablations=null", "chat.format=hermes", "supervised=null", "evaluation.interval_steps=1",
         "evaluation.interval_episodes=3", "rollout.max_new_tokens=4"]  # fmt: skip


def live_recipe(*overrides, policy=TINY):
    return load_recipe("demo", [*PLAIN, policy, "live.turns_per_update=2", "live.learning_rate=1e-2", *overrides])


class LiveServed(LiveService):
    """What a recipe serves and learns; `async with` is from its start to its end."""

    def __init__(self, folder, resolved, **options):
        self.lines = []
        super().__init__(resolved, folder, name="tiny", say=self.lines.append, **options)

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
        settled = asyncio.ensure_future(self.live.settled())
        await asyncio.wait([settled, self.learning], return_when=asyncio.FIRST_COMPLETED)
        if self.learning.done():
            self.learning.result()

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


def without_cards(text):
    """A redaction that knows one card."""
    return text.replace("4111", "[card]")


def without_words(text):
    """A redaction that leaves nothing."""
    return "x" if text.strip() else text


def broken(text):
    """A redaction that fails."""
    raise ValueError("a bug of its own")
