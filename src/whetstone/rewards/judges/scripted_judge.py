"""Judge that answers with a function: for tests, and for questions that a program can answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from whetstone.plugins import find_part
from whetstone.rewards.judges.judge_client import AnswerCache, ask_judge
from whetstone.rewards.judges.protocol import Meter, Question
from whetstone.tools.thread_runner import call_user_function


class ScriptedJudge:
    """Judge that calls a function; the returned answers are validated as strictly as a model's.

    Args:
        answers: Function of the question, plain or async, that returns a text or an object; or its name, as
            `package.module:function`.
        max_attempts: Maximum number of calls until an answer is valid.
        cache: File that caches answers by question; null caches the latest in memory.
    """

    def __init__(
        self, *, answers: Callable[[Question], Any] | str, max_attempts: int = 2, cache: str | None = None
    ) -> None:
        self.answers = find_part("judge's answers", answers, {}) if isinstance(answers, str) else answers
        self.max_attempts, self.meter = max_attempts, Meter()
        self._who = answers if isinstance(answers, str) else getattr(answers, "__qualname__", "scripted")
        self._cache = AnswerCache(cache)

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """Call the function with a question and validate its answer by the question's schema.

        Raises:
            InfrastructureError: If no answer is valid.
        """

        async def request(attempt: int) -> str:
            answer = await call_user_function(self.answers, question)
            return answer if isinstance(answer, str) else json.dumps(answer)

        return await ask_judge(
            question, request, who=self._who, cache=self._cache, meter=self.meter, tries=self.max_attempts
        )

    async def close(self) -> None:
        """Close the cache file."""
        self._cache.close()
