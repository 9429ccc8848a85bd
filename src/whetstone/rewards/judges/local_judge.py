"""Local judge: a model in a folder whose answers are constrained to the question's JSON Schema.

If a value has few choices (a boolean, an enum, a small integer), each choice is scored and the most probable one is
returned; only free text is sampled. So the answer is always valid, without parsing or retries.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat import Chat, system, user
from whetstone.chat.formats.hermes import Hermes
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.inference import Engine, GenerateRequest, Sampling, frozen_member
from whetstone.policies import find_device
from whetstone.rewards.judges.judge_client import AnswerCache, ask_judge
from whetstone.rewards.judges.protocol import Meter, Question
from whetstone.tokens import TokenSequence

_MOST_CHOICES = 101


class LocalJudge:
    """Judge that runs a frozen model on this machine.

    Args:
        path: Hugging Face model folder, such as a checkpoint.
        trust_remote_code: Whether to run code that comes with the model.
        reason_tokens: Maximum number of tokens of a free text in an answer.
        concurrency: Maximum number of concurrent questions.
        cache: File that caches answers by question; null caches the latest in memory.
        device: Device of the model, see `policy.device`.

    Raises:
        PolicyError: If the model or device does not exist.
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
        self.member = frozen_member(
            "judge",
            path,
            trust_remote_code=trust_remote_code,
            device=find_device(device),
            chat=lambda policy: Chat(policy.tokenizer, Hermes()),
            max_sequences=concurrency,
        )
        self._policy, self._chat = self.member.policy, self.member.chat
        self._cache = AnswerCache(cache)
        self._num_questions = 0

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """Generate the model's answer to a question, constrained to the question's schema.

        Raises:
            InfrastructureError: If the question exceeds the model's context length.
            RecipeError: If the schema has a value that is neither a text nor has few choices.
        """

        async def request(attempt: int) -> str:
            return json.dumps(await self._generate(question))

        return await ask_judge(question, request, who=self.path, cache=self._cache, meter=self.meter, tries=1)

    async def close(self) -> None:
        """Unload the model and close the cache file."""
        self._cache.close()
        await self.member.close()

    async def _generate(self, question: Question) -> dict[str, Any]:
        engine = self.member.engine
        messages = question.messages()
        ids = list(self._chat.open([system(messages[0]["content"]), user(messages[1]["content"])], ()).ids)
        self.meter.prompt_tokens += len(ids)
        self._num_questions += 1
        episode, answer = f"question-{self._num_questions}", {}
        try:
            for place, (name, shape) in enumerate(question.shape["properties"].items()):
                ids += self._encoded(("{" if place == 0 else ", ") + json.dumps(name) + ": ")
                if len(ids) + self.reason_tokens + 8 > self._policy.context_length:
                    raise InfrastructureError(
                        f"the question has {len(ids)} tokens, and the judge at {self.path} has a context of "
                        f"{self._policy.context_length}; use a judge with a longer context"
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
        """Sample a string value up to its closing quote; return (text, its tokens with quotes)."""
        opened = [*ids, *self._encoded('"')]
        sampling = Sampling(
            max_new_tokens=self.reason_tokens, temperature=0.0, stop_strings=('"',), stop_ids=self._chat.stop_ids
        )
        completion = await engine.generate(GenerateRequest(TokenSequence(opened), sampling, episode))
        self.meter.completion_tokens += len(completion.tokens)
        text = self._policy.tokenizer.decode(completion.tokens, skip_special_tokens=True).partition('"')[0]
        return text, self._encoded(json.dumps(text))

    async def _likeliest(self, engine: Engine, ids: Sequence[int], choices: Sequence[Any]) -> tuple[Any, list[int]]:
        """Return the choice with the highest log-prob, including the token after it, and the choice's tokens."""
        written = [self._encoded(json.dumps(choice) + ",") for choice in choices]
        sequences = [TokenSequence([*ids, *tokens]) for tokens in written]
        scores = await asyncio.gather(*(engine.score(each, start=len(ids)) for each in sequences))
        sums = [sum(each.logprobs) for each in scores]
        best = max(range(len(choices)), key=lambda k: sums[k])
        return choices[best], self._encoded(json.dumps(choices[best]))

    def _encoded(self, text: str) -> list[int]:
        return list(self._chat.encode(text))


def _choices(name: str, shape: Mapping[str, Any]) -> list[Any] | None:
    """Return the possible values of a schema with few choices; None for free text."""
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
    raise RecipeError(f"a local judge supports strings, booleans, enums and small integers; {name} is {dict(shape)}")
