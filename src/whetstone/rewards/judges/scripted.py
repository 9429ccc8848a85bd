"""A judge that answers by a function: for tests, and where a program can say what a model would be asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from whetstone.plugins import find_part
from whetstone.rewards.judges.asking import Kept, certain
from whetstone.rewards.judges.protocol import Meter, Question
from whetstone.tools.threads import call_user_function


class ScriptedJudge:
    """Says what a function says; its answers are read as strictly as a model's.

    Args:
        answers: A function of the question, plain or async, that gives a text or an object; or its name, as
            `package.module:function`.
        max_attempts: Maximum number of calls until the answer has the right shape.
        cache: A file that keeps answers by what was asked; null keeps the latest in memory.
    """

    def __init__(
        self, *, answers: Callable[[Question], Any] | str, max_attempts: int = 2, cache: str | None = None
    ) -> None:
        self.answers = find_part("judge's answers", answers, {}) if isinstance(answers, str) else answers
        self.max_attempts, self.meter = max_attempts, Meter()
        self._who = answers if isinstance(answers, str) else getattr(answers, "__qualname__", "scripted")
        self._kept = Kept(cache)
        self._under_way: dict[str, asyncio.Future[Mapping[str, Any]]] = {}

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """What the function says."""

        async def said(attempt: int) -> str:
            answer = await call_user_function(self.answers, question)
            return answer if isinstance(answer, str) else json.dumps(answer)

        return await certain(
            question,
            said,
            who=self._who,
            kept=self._kept,
            under_way=self._under_way,
            meter=self.meter,
            tries=self.max_attempts,
        )

    async def close(self) -> None:
        """Let go of the file."""
        self._kept.close()
