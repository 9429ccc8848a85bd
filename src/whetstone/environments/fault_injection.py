"""Fault injection: wraps any environment with tools that are slow, fail, or return outdated results.

Note:
    The noise is a function of the episode's seed: the same actions meet the same noise, so an episode can still be
    replayed. A failed call never reaches the environment, so no action is half executed.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from random import Random
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, tool_result, user
from whetstone.environments.protocol import Environment, HoldsTools, Observation, StepResult
from whetstone.seeding import derive_random
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import CallRecord, Task

_FAILED = "error: the service did not answer; try again"


class Noisy:
    """Wrapper that injects delays, failures and outdated results into an environment.

    Args:
        environment: The wrapped environment.
        error_rate: Probability that an action fails and is not executed.
        stale_rate: Probability that the observation of the previous action is returned, although the action was
            executed. Never for the last action of an episode.
        delay_seconds: Median of the additional delay of each action, in seconds.
        delay_sigma: Sigma of the log-normal distribution of delays; 0 makes them constant.
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
        """Start an episode and derive its noise from the seed.

        The observation declares the fault rates to the model as the fact `noise`.
        """
        self._draw, self._last = derive_random(seed, "noise"), None
        self.failed = self.late = 0
        first: Observation = await call_user_function(self.environment.reset, task, seed=seed)
        declared = (*first.declared, ("noise", f"errors {self.error_rate:g}, outdated {self.stale_rate:g}"))
        return replace(first, declared=declared)

    async def step(self, action: Message) -> StepResult:
        """Execute an action with a random delay, or return an error without executing it.

        In an environment with tools, an action without calls is the final answer and has no noise.
        """
        fails, late, slow = self._draw.random(), self._draw.random(), self._draw.gauss(0, 1)
        answers = implements_protocol(self.environment, HoldsTools) and not action.tool_calls
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
        """Close the environment into which faults are injected."""
        await call_user_function(self.environment.close)


def _failure(action: Message) -> StepResult:
    """Return the error of a failed action, one message per call."""
    if not action.tool_calls:
        return StepResult(Observation((user(_FAILED),)))
    messages = tuple(tool_result(_FAILED, call_id=call.id or None) for call in action.tool_calls)
    return StepResult(
        Observation(messages), calls=tuple(CallRecord(c.name, "tool_error", 0.0) for c in action.tool_calls)
    )


def _as_before(now: Observation, before: Observation) -> Observation:
    """Return an observation with the message contents of the previous observation."""
    if not before.messages:
        return now
    messages = tuple(
        replace(message, content=before.messages[min(k, len(before.messages) - 1)].content)
        for k, message in enumerate(now.messages)
    )
    return replace(now, messages=messages)
