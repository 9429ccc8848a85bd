"""Advisor of a frozen agent: the policy gives advice, and the agent acts in the environment.

    advice (the policy) → agent, which reads the observation and the advice → environment → observation …

The policy reads the observations of the environment; its turns contain only advice. Its reward is the agent's
success: the verdict of the environment, and per turn the reward after each piece of advice.

Note:
    An agent that does well by itself needs no advice. Compare with `advice: false`.

Source: Liu et al. 2025 (EPO, explicit policy optimization), arXiv:2502.12486.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, user
from whetstone.environments.protocol import Environment, Observation, StepResult
from whetstone.seeding import derive_seed
from whetstone.tools import FrozenModel, find_model
from whetstone.tools.protocol import GivesVerdict
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import CallRecord, Task


class Advised:
    """Environment in which a frozen agent acts and the policy gives advice.

    The policy reads the observations of the inner environment; each of its turns is a piece of advice, on which the
    frozen agent acts.

    Ends: as the inner environment does.

    Args:
        models: By name; filled in from the recipe's `models`.
        agent: Name of the frozen model that acts: it reads the last observation and `advice: …`.
        world: Environment of the agent: a name, or a mapping of name and options.
        actions_per_advice: Number of actions of the agent per piece of advice.
        advice: Show the advice to the agent; false is the baseline without advice.

    Raises:
        RecipeError: If there is no model with the name.
    """

    replayable = False

    def __init__(
        self,
        *,
        models: Mapping[str, FrozenModel] | None = None,
        agent: str,
        world: Callable[[], Environment],
        actions_per_advice: int = 1,
        advice: bool = True,
    ) -> None:
        self.agent, self.actions_per_advice, self.advice = find_model(models, agent), actions_per_advice, advice
        self.world = world()
        self.seed = self.acted = 0
        self.seen = Observation(())
        """Observation that the agent reads next."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Reset the inner environment and return its first observation without its tools."""
        self.seed, self.acted = seed, 0
        self.seen = await call_user_function(self.world.reset, task, seed=seed)
        return replace(self.seen, tools=())

    async def step(self, action: Message) -> StepResult:
        """Let the frozen agent act on the advice of the policy.

        The agent makes up to `actions_per_advice` actions, fewer if the episode ends. The reward is the sum of their
        rewards.

        Raises:
            InfrastructureError: If the agent is unavailable.
        """
        rewards: list[float] = []
        calls: list[CallRecord] = []
        for _ in range(self.actions_per_advice):
            message = await self._ask_agent(action.text, calls)
            result: StepResult = await call_user_function(self.world.step, message)
            tools = result.observation.tools or self.seen.tools
            self.seen = replace(result.observation, tools=tools)
            calls += result.calls
            rewards += [] if result.reward is None else [result.reward]
            if result.ended is not None:
                break
        observation = Observation(_as_user_messages(self.seen), author=self.seen.author)
        return replace(result, observation=observation, reward=sum(rewards) if rewards else None, calls=tuple(calls))

    async def verdict(self) -> Mapping[str, Any]:
        """Return the verdict of the inner environment; empty if it has none."""
        if not implements_protocol(self.world, GivesVerdict):
            return {}
        verdict: Mapping[str, Any] = await call_user_function(self.world.verdict)
        return verdict

    async def close(self) -> None:
        """Close the inner environment in which the frozen agent acts."""
        await call_user_function(self.world.close)

    async def _ask_agent(self, advice: str, calls: list[CallRecord]) -> Message:
        """Return the agent's next message and append its call record to `calls`."""
        began = time.perf_counter()
        messages = (*self.seen.messages, user(f"advice: {advice}")) if self.advice else self.seen.messages
        seed = derive_seed(self.seed, self.agent.name, self.acted)
        reply = await self.agent.answer(messages, tools=self.seen.tools, seed=seed)
        self.acted += 1
        calls.append(CallRecord(self.agent.name, "ok", time.perf_counter() - began, cost=self.agent.price))
        return reply


def _as_user_messages(seen: Observation) -> tuple[Message, ...]:
    """Return the messages of an observation with tool results as user messages.

    The advisor has no tools, so it cannot read tool results.
    """
    return tuple(user(message.text) if message.role == "tool" else message for message in seen.messages)
