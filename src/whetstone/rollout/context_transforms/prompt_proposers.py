"""Proposers of new instructions: a built-in function without a model, a model at an endpoint, or a custom function.

    (failed episodes, instructions from the best to the worst, random generator) → instructions to try

Note:
    A proposal competes with the other instructions, and the rewards of its groups decide whether it stays.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from whetstone.chat import ChatEndpoint
from whetstone.chat.openai_client import read_api_key
from whetstone.errors import InfrastructureError

Proposer = Callable[[Sequence[str], Sequence[str], Random], Sequence[str]]
"""Function (transcripts of failures, the worst first; instructions, the best first; random generator) → new
instructions."""

_REMEDIES: Sequence[tuple[str, str]] = (
    (r"(?i)^tool: .*error", "Where a call fails, read why and call again."),
    (r"(?is)\A(?!.*^tool: )", "Call a tool before you answer."),
    (r"(?i)^tool: (.*)$[\s\S]*^tool: \1$", "Make no call twice."),
    (r"(?is)^assistant:\s*\Z", "End with an answer."),
)
"""Pairs of a pattern that a failed transcript matches, and a sentence that addresses the failure."""


def split_sentences(text: str) -> list[str]:
    """Split an instruction into its sentences.

    >>> split_sentences("Look first. Then answer!")
    ['Look first.', 'Then answer!']
    """
    return [each for each in re.split(r"(?<=[.!?])\s+", text.strip()) if each]


def select_remedies(failures: Sequence[str]) -> list[str]:
    """Return sentences that address patterns in at least half of the failures, the most frequent pattern first."""
    counted = [
        (sum(bool(re.search(pattern, failure, re.MULTILINE)) for failure in failures), text)
        for pattern, text in _REMEDIES
    ]
    return [text for count, text in sorted(counted, key=lambda each: -each[0]) if 2 * count >= len(failures) > 0]


def recombine_instructions(failures: Sequence[str], texts: Sequence[str], draw: Random) -> list[str]:
    """Propose up to two instructions that recombine sentences of the existing ones, without a model.

    Candidates: the best instruction with a sentence that addresses its failures; its first half with the second half of
    another one; the best one without a sentence, or with two sentences swapped. No sentence occurs twice.

    Source: INSPO 2025, arXiv:2512.01945, whose proposer is a language model; this one is an addition.
    """
    if not texts:
        return []
    best = split_sentences(texts[0])
    candidates = [[*best, text] for text in select_remedies(failures)[:1]]
    if len(texts) > 1:
        other = split_sentences(draw.choice(list(texts[1:])))
        candidates.append([*best[: (len(best) + 1) // 2], *other[len(other) // 2 :]])
    if len(best) > 1:
        without = draw.randrange(len(best))
        candidates.append([each for k, each in enumerate(best) if k != without])
        one, two = draw.sample(range(len(best)), 2)
        swapped = list(best)
        swapped[one], swapped[two] = swapped[two], swapped[one]
        candidates.append(swapped)
    written = list(dict.fromkeys(" ".join(dict.fromkeys(each)) for each in candidates))
    proposed = [text for text in written if text not in texts]
    return proposed[:1] + draw.sample(proposed[1:], min(1, len(proposed) - 1)) if proposed else []


class EndpointProposer:
    """Proposer that lets a model at an OpenAI-compatible endpoint read failures and write instructions.

    The model is requested again when a run is replayed (`whetstone replay --updates`), and may then respond
    differently. A checkpoint contains its responses.

    Args:
        url: Base URL of the API, such as `http://localhost:8000/v1`.
        model: Name of the model on the server.
        api_key_env: Environment variable with the API key; empty: no key is sent.
        temperature: Sampling temperature.
        seconds: Deadline of one response, in seconds.
        characters: Maximum number of characters of a failure; a longer one is truncated.

    Raises:
        RecipeError: If the environment variable is not set.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        api_key_env: str = "",
        temperature: float = 0.7,
        seconds: float = 60.0,
        characters: int = 2000,
    ) -> None:
        self.endpoint = ChatEndpoint(url, model, key=read_api_key(api_key_env), seconds=seconds)
        self.temperature, self.characters = temperature, characters

    def __call__(self, failures: Sequence[str], texts: Sequence[str], draw: Random) -> list[str]:
        """Request two instructions from the model; empty texts are left out.

        Raises:
            InfrastructureError: If the request fails, or the response is not a JSON list of texts.
        """
        failed = "\n\n".join(f"Episode {k + 1}:\n{text[: self.characters]}" for k, text in enumerate(failures[:4]))
        best = "\n".join(f"- {text}" for text in texts)
        ask = (
            f"An agent is instructed by one of these, from the best to the worst:\n{best}\n\nIt failed here:\n{failed}"
            "\n\nWrite two better instructions of one to three sentences that would have helped and hold for other "
            'tasks as well. Answer with a JSON list of two texts and nothing else: ["…", "…"]'
        )
        seed = draw.randrange(2**31)
        response = _in_a_thread(lambda: self._request([{"role": "user", "content": ask}], seed))
        match = re.search(r"\[.*\]", response, re.DOTALL)
        try:
            read = json.loads(match[0]) if match else None
        except ValueError:
            read = None
        if not isinstance(read, list) or not all(isinstance(each, str) for each in read):
            raise InfrastructureError(
                f"the model at {self.endpoint.url} returned no list of instructions: {response[:80]!r}"
            )
        return [each.strip() for each in read[:2] if each.strip()]

    async def _request(self, messages: Sequence[Mapping[str, Any]], seed: int) -> str:
        try:
            answer = await self.endpoint.complete(messages, temperature=self.temperature, seed=seed)
        finally:
            await self.endpoint.close()
        return answer.text


def _in_a_thread(ask: Callable[[], Any]) -> str:
    """Run a coroutine in an event loop of a new thread and return its result.

    Required because the caller runs inside an event loop.
    """
    answers: list[str | BaseException] = []

    def run() -> None:
        try:
            answers.append(asyncio.run(ask()))
        except BaseException as error:  # raised in the calling thread
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer


PROPOSERS: Mapping[str, Any] = {"endpoint": EndpointProposer, "recombined": recombine_instructions}
"""Built-in proposers by the name in the option `proposer`."""
