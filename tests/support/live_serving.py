"""A policy that learns while it is served, and a user, without a socket."""

import asyncio
import hashlib

import httpx2
import openai

from support.served_policy import TINY
from whetstone.recipe import load_recipe
from whetstone.serving.online import LiveService

PLAIN = ["ablations=null", "chat.format=hermes", "supervised=null", "evaluation.interval_steps=1",
         "evaluation.interval_episodes=3", "rollout.max_new_tokens=4"]  # fmt: skip


def live_recipe(*overrides, policy=TINY):
    return load_recipe("demo", [*PLAIN, policy, "live.turns_per_update=2", "live.learning_rate=1e-2", *overrides])


class LiveServed(LiveService):
    """A server with live learning of a recipe; `async with` starts and ends it."""

    def __init__(self, folder, resolved, **options):
        self.lines = []
        super().__init__(resolved, folder, name="tiny", say=self.lines.append, **options)

    def http(self, **options):
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://localhost", **options)

    def client(self, episode):
        return openai.AsyncOpenAI(
            api_key="none", base_url=f"http://localhost/episodes/{episode}/v1", max_retries=0, http_client=self.http()
        )

    async def admin_request(self, method, path, **options):
        """Send a request as the administrator; return (status, body)."""
        answer = await self.http().request(method, f"/v1/live{path}", **options)
        return answer.status_code, answer.json()

    async def settled(self):
        """Wait until all due turns are trained."""
        settled = asyncio.ensure_future(self.live.wait_idle())
        await asyncio.wait([settled, self.learning], return_when=asyncio.FIRST_COMPLETED)
        if self.learning.done():
            self.learning.result()

    def weights(self):
        """Return a digest of the weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.assembly.policy.model.state_dict().items()):
            digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()


async def corrected(served, episode, *, says="No, it should be B.", asks="Name a letter.", seed=0, tokens=3):
    """Play an episode whose first response is corrected; return its messages."""
    client, messages = served.client(episode), [{"role": "user", "content": asks}]
    for turn in range(2):
        response = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=tokens, seed=seed + turn
        )
        messages.append(response.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": says})
    return messages


def without_cards(text):
    """Redact one card number."""
    return text.replace("4111", "[card]")


def without_words(text):
    """Redact everything."""
    return "x" if text.strip() else text


def broken(text):
    """Fail."""
    raise ValueError("a bug of the redactor")
