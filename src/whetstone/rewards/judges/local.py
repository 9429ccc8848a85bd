"""A judge of one's own: a model in a folder, whose answer is drawn inside the shape asked for.

Where an answer is one of few (yes or no, a choice, a small number) the likeliest of them is taken by scoring each;
only free text is sampled. So there is no prose to be read, and nothing to be asked again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat import Chat, system, user
from whetstone.chat.formats.hermes import Hermes
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.inference import Engine, GenerateRequest, LocalEngine, Sampling
from whetstone.policies import find_device, load_frozen
from whetstone.rewards.judges.asking import Kept, certain
from whetstone.rewards.judges.protocol import Meter, Question
from whetstone.tokens import TokenSequence

_MOST_CHOICES = 101


class LocalJudge:
    """Asks a model on this machine.

    Args:
        path: A Hugging Face folder; a checkpoint is one.
        trust_remote_code: Whether code that comes with the model is run.
        reason_tokens: How long a free text in an answer may be.
        concurrency: Questions under way at once.
        cache: A file that keeps answers by what was asked; null keeps the latest in memory.
        device: What it is computed on, as of `policy.device`.

    Raises:
        PolicyError: There is no such model or device.
    """

    def __init__(
        self,
        *,
        path: str,
        reason_tokens: int = 64,
        concurrency: int = 8,
        cache: str | None = None,
        trust_remote_code: bool = False,
        device: str = "auto",
    ) -> None:
        self.path, self.reason_tokens, self.concurrency, self.meter = path, reason_tokens, concurrency, Meter()
        self._policy = load_frozen(path, trust_remote_code=trust_remote_code, device=find_device(device))
        self._chat = Chat(self._policy.tokenizer, Hermes())
        self._kept = Kept(cache)
        self._under_way: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = 0

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """What the model says, of the question's shape.

        Raises:
            InfrastructureError: The question is longer than what the model can read.
            RecipeError: The shape has something that is neither a text nor one of few.
        """

        async def said(attempt: int) -> str:
            return json.dumps(await self._said(question))

        return await certain(
            question, said, who=self.path, kept=self._kept, under_way=self._under_way, meter=self.meter, tries=1
        )

    async def close(self) -> None:
        """Let go of model and file."""
        self._kept.close()
        engine, self._engine = self._engine, None
        if engine is not None and self._loop is asyncio.get_running_loop():
            await engine.close()

    async def _said(self, question: Question) -> dict[str, Any]:
        engine = self._here()
        messages = question.messages()
        ids = list(self._chat.open([system(messages[0]["content"]), user(messages[1]["content"])], ()).ids)
        self.meter.prompt_tokens += len(ids)
        self._asked += 1
        episode, answer = f"question-{self._asked}", {}
        try:
            for place, (name, shape) in enumerate(question.shape["properties"].items()):
                ids += self._encoded(("{" if place == 0 else ", ") + json.dumps(name) + ": ")
                if len(ids) + self.reason_tokens + 8 > self._policy.context_length:
                    raise InfrastructureError(
                        f"the question has {len(ids)} tokens, and the judge at {self.path} reads "
                        f"{self._policy.context_length}"
                    )
                choices = _choices(name, shape)
                if choices is None:
                    value, written = await self._text(engine, ids, episode)
                else:
                    value, written = await self._likeliest(engine, ids, choices)
                answer[name] = value
                ids += written
        finally:
            engine.forget(episode)
        return answer

    async def _text(self, engine: Engine, ids: Sequence[int], episode: str) -> tuple[str, list[int]]:
        """Words up to the closing mark."""
        opened = [*ids, *self._encoded('"')]
        sampling = Sampling(
            max_new_tokens=self.reason_tokens, temperature=0.0, stop_strings=('"',), stop_ids=self._chat.stop_ids
        )
        drawn = await engine.generate(GenerateRequest(TokenSequence(opened), sampling, episode))
        self.meter.completion_tokens += len(drawn.tokens)
        text = self._policy.tokenizer.decode(drawn.tokens, skip_special_tokens=True).partition('"')[0]
        return text, self._encoded(json.dumps(text))

    async def _likeliest(self, engine: Engine, ids: Sequence[int], choices: Sequence[Any]) -> tuple[Any, list[int]]:
        """Of the choices the one that is likeliest as a whole, what closes it included."""
        written = [self._encoded(json.dumps(choice) + ",") for choice in choices]
        sequences = [TokenSequence([*ids, *tokens]) for tokens in written]
        scores = await asyncio.gather(*(engine.score(each, start=len(ids)) for each in sequences))
        sums = [sum(each.logprobs) for each in scores]
        best = max(range(len(choices)), key=lambda k: sums[k])
        return choices[best], self._encoded(json.dumps(choices[best]))

    def _encoded(self, text: str) -> list[int]:
        return list(self._chat.encode(text))

    def _here(self) -> Engine:
        loop = asyncio.get_running_loop()
        if self._engine is None or self._loop is not loop:
            self._loop = loop
            self._engine = LocalEngine(
                self._policy.model,
                context_length=self._policy.context_length,
                rows=self.concurrency,
                detokenize=self._policy.tokenizer.decode,
            )
        return self._engine


def _choices(name: str, shape: Mapping[str, Any]) -> list[Any] | None:
    """What a value may be; None where it is free text."""
    if "enum" in shape:
        return list(shape["enum"])
    if shape.get("type") == "boolean":
        return [True, False]
    if shape.get("type") == "integer" and {"minimum", "maximum"} <= set(shape):
        low, high = int(shape["minimum"]), int(shape["maximum"])
        if high - low < _MOST_CHOICES:
            return list(range(low, high + 1))
    if shape.get("type") == "string":
        return None
    raise RecipeError(f"a local judge answers in texts, yes or no, choices and small numbers; {name} is {dict(shape)}")
