"""Judge that calls an OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat import ChatEndpoint
from whetstone.chat.openai_client import read_api_key
from whetstone.rewards.judges.judge_client import AnswerCache, ask_judge
from whetstone.rewards.judges.protocol import Meter, Question


class EndpointJudge:
    """Judge that queries a model at an OpenAI-compatible endpoint.

    The JSON Schema of the answer is sent as `response_format`, and the answer is always validated.

    Args:
        url: Base URL of the API, such as `http://localhost:8000/v1`.
        model: Model name on the server.
        api_key_env: Environment variable with the API key; empty: no key is sent.
        temperature: Sampling temperature; 0 for greedy decoding.
        seconds: Timeout of a request, in seconds.
        max_attempts: Maximum number of attempts of a request if the server is down or busy, and of requests until an
            answer is valid.
        concurrency: Maximum number of concurrent requests.
        cache: File that caches answers by question; null caches the latest in memory.
        prompt_price: Price per million prompt tokens, for the cost metric.
        completion_price: Price per million completion tokens, for the cost metric.
        forced: Whether the JSON Schema is sent; some servers reject it.

    Raises:
        RecipeError: If the environment variable is not set.
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
        key = read_api_key(api_key_env)
        self.endpoint = ChatEndpoint(url, model, key=key, seconds=seconds, tries=max_attempts, concurrency=concurrency)
        self.temperature, self.max_attempts, self.forced = temperature, max_attempts, forced
        self.prices = (prompt_price, completion_price)
        self.meter = Meter()
        self._cache = AnswerCache(cache)

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """Request the model's answer to a question and validate it by the question's schema.

        Raises:
            InfrastructureError: If the server is unreachable, or never returns a valid answer.
        """
        who = f"{self.endpoint.url} {self.endpoint.model} {self.temperature:g}"

        async def request(attempt: int) -> str:
            options: dict[str, Any] = {"temperature": self.temperature}
            if self.forced:
                schema = {"name": "answer", "strict": True, "schema": dict(question.shape)}
                options["response_format"] = {"type": "json_schema", "json_schema": schema}
            if attempt:  # the same request would return the same answer
                options |= {"seed": attempt, "temperature": max(self.temperature, 0.3)}
            completion = await self.endpoint.complete(question.messages(), **options)
            meter, (of_prompt, of_completion) = self.meter, self.prices
            meter.prompt_tokens += completion.prompt_tokens
            meter.completion_tokens += completion.completion_tokens
            cost = completion.prompt_tokens * of_prompt + completion.completion_tokens * of_completion
            meter.cost += cost / 1e6
            meter.retries += completion.tries - 1
            return completion.text

        return await ask_judge(question, request, who=who, cache=self._cache, meter=self.meter, tries=self.max_attempts)

    async def close(self) -> None:
        """Close the HTTP connection and the cache file."""
        self._cache.close()
        await self.endpoint.close()
