"""Any environment, with tools that are slow, fail, or answer out of date, as tools in the world do.

Easy to get wrong: noise is chance, and chance comes from the episode's seed: the same actions meet the same noise, so
an episode can still be led through again. And what cannot be carried out must not half happen: a failed call never
reached the environment.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from random import Random
from typing import Any

from whetstone.chat import Message, tool_result, user
from whetstone.contracts import fulfils
from whetstone.environments.protocol import Environment, HoldsTools, Observation, StepResult
from whetstone.seeding import derive_random
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import CallRecord, Task

_FAILED = "error: the service did not answer; try again"


class Noisy:
    """An environment around another.

    Args:
        environment: The other.
        error_rate: Probability that an action fails and is not executed.
        stale_rate: Probability that the observation of the previous action is returned, although the action was
            executed. Never for the last action of an episode.
        delay_seconds: The median of how long each action takes besides.
        delay_sigma: Of the delays' log-normal distribution; 0 makes them all alike.
    """

    stateless = False

    def __init__(
        self,
        environment: Environment,
        *,
        error_rate: float = 0.0,
        stale_rate: float = 0.0,
        delay_seconds: float = 0.0,
        delay_sigma: float = 1.0,
    ) -> None:
        self.environment, self.error_rate, self.stale_rate = environment, error_rate, stale_rate
        self.delay_seconds, self.delay_sigma = delay_seconds, delay_sigma
        self.keeps = False
        self.failed = self.late = 0
        self._draw = Random(0)
        self._last: StepResult | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin, with noise of the seed's."""
        self._draw, self._last = derive_random(seed, "noise"), None
        self.failed = self.late = 0
        first: Observation = await call_user_function(self.environment.reset, task, seed=seed)
        declared = (*first.declared, ("noise", f"errors {self.error_rate:g}, outdated {self.stale_rate:g}"))
        return replace(first, declared=declared)

    async def step(self, action: Message) -> StepResult:
        """Carry it out, or fail; an action that is an answer has no noise."""
        fails, late, slow = self._draw.random(), self._draw.random(), self._draw.gauss(0, 1)
        answers = fulfils(self.environment, HoldsTools) and not action.tool_calls
        if answers:
            answer: StepResult = await call_user_function(self.environment.step, action)
            return answer
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds * math.exp(self.delay_sigma * slow))
        if fails < self.error_rate:
            self.failed += 1
            return _failure(action)
        result: StepResult = await call_user_function(self.environment.step, action)
        if late < self.stale_rate and self._last is not None and result.ended is None:
            self.late += 1
            return replace(result, observation=_as_before(result.observation, self._last.observation))
        self._last = result
        return result

    async def close(self) -> None:
        """Close the other."""
        await call_user_function(self.environment.close)


def _failure(action: Message) -> StepResult:
    if not action.tool_calls:
        return StepResult(Observation((user(_FAILED),)))
    messages = tuple(tool_result(_FAILED, call_id=call.id or None) for call in action.tool_calls)
    return StepResult(
        Observation(messages), calls=tuple(CallRecord(c.name, "tool_error", 0.0) for c in action.tool_calls)
    )


def _as_before(now: Observation, before: Observation) -> Observation:
    """The messages of before, as answers to the calls of now."""
    if not before.messages:
        return now
    messages = tuple(
        replace(message, content=before.messages[min(k, len(before.messages) - 1)].content)
        for k, message in enumerate(now.messages)
    )
    return replace(now, messages=messages)
