"""A judge behind any OpenAI-compatible address."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from whetstone.chat import ChatEndpoint
from whetstone.chat.endpoint import key_in
from whetstone.rewards.judges.asking import Kept, certain
from whetstone.rewards.judges.protocol import Meter, Question


class EndpointJudge:
    """Asks a model, with the answer's shape forced where the server can (`response_format`), checked wherever it is.

    Args:
        url: Where the API begins, such as `http://localhost:8000/v1`.
        model: Its name there.
        api_key_env: Environment variable with the API key; empty: none is sent.
        temperature: 0 for the likeliest answer.
        seconds: How long one answer may take.
        max_attempts: Maximum number of requests if the server is down or busy, and of requests for a valid answer
            again.
        concurrency: Questions under way at once.
        cache: A file that keeps answers by what was asked; null keeps the latest in memory.
        prompt_price: Of a million tokens, for the meter.
        completion_price: Of a million tokens.
        forced: Whether the shape is sent along; some servers refuse that.

    Raises:
        RecipeError: The variable is not set.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        api_key_env: str = "",
        temperature: float = 0.0,
        seconds: float = 60.0,
        max_attempts: int = 4,
        concurrency: int = 16,
        cache: str | None = None,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
        forced: bool = True,
    ) -> None:
        key = key_in(api_key_env)
        self.endpoint = ChatEndpoint(url, model, key=key, seconds=seconds, tries=max_attempts, concurrency=concurrency)
        self.temperature, self.max_attempts, self.forced = temperature, max_attempts, forced
        self.prices = (prompt_price, completion_price)
        self.meter = Meter()
        self._kept = Kept(cache)
        self._under_way: dict[str, asyncio.Future[Mapping[str, Any]]] = {}

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """What the model says, of the question's shape.

        Raises:
            InfrastructureError: It could not be asked, or never said anything of that shape.
        """
        who = f"{self.endpoint.url} {self.endpoint.model} {self.temperature:g}"

        async def said(attempt: int) -> str:
            options: dict[str, Any] = {"temperature": self.temperature}
            if self.forced:
                schema = {"name": "answer", "strict": True, "schema": dict(question.shape)}
                options["response_format"] = {"type": "json_schema", "json_schema": schema}
            if attempt:  # the same words would bring the same answer
                options |= {"seed": attempt, "temperature": max(self.temperature, 0.3)}
            completion = await self.endpoint.complete(question.messages(), **options)
            meter, (of_prompt, of_completion) = self.meter, self.prices
            meter.prompt_tokens += completion.prompt_tokens
            meter.completion_tokens += completion.completion_tokens
            cost = completion.prompt_tokens * of_prompt + completion.completion_tokens * of_completion
            meter.cost += cost / 1e6
            meter.retries += completion.tries - 1
            return completion.text

        return await certain(
            question,
            said,
            who=who,
            kept=self._kept,
            under_way=self._under_way,
            meter=self.meter,
            tries=self.max_attempts,
        )

    async def close(self) -> None:
        """Let go of connection and file."""
        self._kept.close()
        await self.endpoint.close()
