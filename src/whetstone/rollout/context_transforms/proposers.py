"""Who writes the next instruction of a population? A function of ours that needs no model, a model, or yours.

    (episodes that went worst, instructions from the best to the worst, chance) → instructions to try

Easy to get wrong: a proposal is only a proposal. It is drawn beside the others, and what its groups earn decides
whether it stays.
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
from whetstone.chat.endpoint import key_in
from whetstone.errors import InfrastructureError

Proposer = Callable[[Sequence[str], Sequence[str], Random], Sequence[str]]
"""(failures as text, the worst first; texts, the best first; chance) → texts."""

_REMEDIES: Sequence[tuple[str, str]] = (
    (r"(?i)^tool: .*error", "Where a call fails, read why and call again."),
    (r"(?is)\A(?!.*^tool: )", "Call a tool before you answer."),
    (r"(?i)^tool: (.*)$[\s\S]*^tool: \1$", "Make no call twice."),
    (r"(?is)^assistant:\s*\Z", "End with an answer."),
)
"""What a failed episode looks like, and a sentence against it."""


def fragments(text: str) -> list[str]:
    """The sentences of an instruction.

    >>> fragments("Look first. Then answer!")
    ['Look first.', 'Then answer!']
    """
    return [each for each in re.split(r"(?<=[.!?])\s+", text.strip()) if each]


def remedies(failures: Sequence[str]) -> list[str]:
    """Sentences against what most of the failures have in common, the commonest first."""
    counted = [
        (sum(bool(re.search(pattern, failure, re.MULTILINE)) for failure in failures), text)
        for pattern, text in _REMEDIES
    ]
    return [text for count, text in sorted(counted, key=lambda each: -each[0]) if 2 * count >= len(failures) > 0]


def recombined(failures: Sequence[str], texts: Sequence[str], draw: Random) -> list[str]:
    """Up to two instructions made of the fragments of those there are.

    The best one with a sentence against its failures; its beginning with the end of another; itself without a sentence,
    or with two of them in another order. No sentence is there twice, and none is new but those against failures.

    Source: INSPO 2025, arXiv:2512.01945, whose proposer is a language model; this one is ours.
    """
    if not texts:
        return []
    best = fragments(texts[0])
    made = [[*best, text] for text in remedies(failures)[:1]]
    if len(texts) > 1:
        other = fragments(draw.choice(list(texts[1:])))
        made.append([*best[: (len(best) + 1) // 2], *other[len(other) // 2 :]])
    if len(best) > 1:
        without = draw.randrange(len(best))
        made.append([each for k, each in enumerate(best) if k != without])
        one, two = draw.sample(range(len(best)), 2)
        swapped = list(best)
        swapped[one], swapped[two] = swapped[two], swapped[one]
        made.append(swapped)
    written = list(dict.fromkeys(" ".join(dict.fromkeys(each)) for each in made))
    proposed = [text for text in written if text not in texts]
    return proposed[:1] + draw.sample(proposed[1:], min(1, len(proposed) - 1)) if proposed else []


class AskedModel:
    """A model behind an OpenAI-compatible address reads the failures and writes instructions.

    It is asked again when a run is made again (`whetstone replay --updates`), and may then say something else; what a
    checkpoint holds is what it said.

    Args:
        url: Where the API begins, such as `http://localhost:8000/v1`.
        model: Its name there.
        api_key_env: Environment variable with the API key; empty: none is sent.
        temperature: Of its answers.
        seconds: How long one answer may take.
        characters: A longer failure is cut.

    Raises:
        RecipeError: The variable is not set.
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
        self.endpoint = ChatEndpoint(url, model, key=key_in(api_key_env), seconds=seconds)
        self.temperature, self.characters = temperature, characters

    def __call__(self, failures: Sequence[str], texts: Sequence[str], draw: Random) -> list[str]:
        """Up to two instructions.

        Raises:
            InfrastructureError: It could not be asked, or wrote no list of texts.
        """
        shown = "\n\n".join(f"Episode {k + 1}:\n{text[: self.characters]}" for k, text in enumerate(failures[:4]))
        listed = "\n".join(f"- {text}" for text in texts)
        ask = (
            f"An agent is instructed by one of these, from the best to the worst:\n{listed}\n\nIt failed here:\n{shown}"
            "\n\nWrite two better instructions of one to three sentences that would have helped and hold for other "
            'tasks as well. Answer with a JSON list of two texts and nothing else: ["…", "…"]'
        )
        seed = draw.randrange(2**31)
        said = _in_a_thread(lambda: self._said([{"role": "user", "content": ask}], seed))
        found = re.search(r"\[.*\]", said, re.DOTALL)
        try:
            read = json.loads(found[0]) if found else None
        except ValueError:
            read = None
        if not isinstance(read, list) or not all(isinstance(each, str) for each in read):
            raise InfrastructureError(f"the model at {self.endpoint.url} wrote no list of instructions: {said[:80]!r}")
        return [each.strip() for each in read[:2] if each.strip()]

    async def _said(self, messages: Sequence[Mapping[str, Any]], seed: int) -> str:
        try:
            answer = await self.endpoint.complete(messages, temperature=self.temperature, seed=seed)
        finally:
            await self.endpoint.close()
        return answer.text


def _in_a_thread(ask: Callable[[], Any]) -> str:
    """What a coroutine comes to, in an event loop of its own: whoever asks is inside one."""
    answers: list[str | BaseException] = []

    def run() -> None:
        try:
            answers.append(asyncio.run(ask()))
        except BaseException as error:  # raised where it was asked
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer


PROPOSERS: Mapping[str, Any] = {"endpoint": AskedModel, "recombined": recombined}
"""By the name a recipe has for it."""
